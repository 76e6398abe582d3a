"""Served cells that the constants of vLLM of autumn 2025 in sim/engines/vllm-0.12.json were fitted on.

A third of the cells of Llama-3.1-70B: `random.Random(30).sample(ids, len(ids) // 3)` of the sorted ids of the visible
aggregated rows.
"""

DRAWN = frozenset(
    [
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp4_agg_1024x1024_c16_tp1_ep1_779",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp4_agg_1024x1024_c16_tp2_ep1_734",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp4_agg_1024x1024_c4_tp1_ep1_694",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp4_agg_1024x1024_c8_tp1_ep1_822",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp4_agg_1024x1024_c8_tp2_ep1_665",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp4_agg_1024x8192_c16_tp4_ep1_564",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp4_agg_1024x8192_c32_tp2_ep1_474",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp4_agg_1024x8192_c32_tp4_ep1_506",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp4_agg_1024x8192_c64_tp2_ep1_326",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp4_agg_1024x8192_c64_tp4_ep1_565",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp4_agg_8192x1024_c16_tp2_ep1_675",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp4_agg_8192x1024_c32_tp1_ep1_831",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp4_agg_8192x1024_c4_tp4_ep1_661",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp4_agg_8192x1024_c64_tp4_ep1_672",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp8_agg_1024x1024_c16_tp2_ep1_744",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp8_agg_1024x1024_c16_tp4_ep1_637",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp8_agg_1024x1024_c32_tp2_ep1_721",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp8_agg_1024x1024_c32_tp8_ep1_756",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp8_agg_1024x1024_c4_tp4_ep1_722",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp8_agg_1024x1024_c4_tp8_ep1_581",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp8_agg_1024x1024_c64_tp4_ep1_631",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp8_agg_1024x8192_c4_tp2_ep1_556",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp8_agg_1024x8192_c64_tp2_ep1_470",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp8_agg_1024x8192_c64_tp4_ep1_573",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp8_agg_8192x1024_c16_tp2_ep1_758",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp8_agg_8192x1024_c32_tp4_ep1_812",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp8_agg_8192x1024_c4_tp4_ep1_850",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp8_agg_8192x1024_c4_tp8_ep1_818",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp8_agg_8192x1024_c64_tp4_ep1_843",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp8_agg_8192x1024_c64_tp8_ep1_674",
        "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp8_agg_8192x1024_c8_tp4_ep1_692",
        "2026_04_06_llama_3_1_70b_h100_sxm_vllm_fp8_agg_1024x1024_c16_tp4_ep1_260",
        "2026_04_06_llama_3_1_70b_h100_sxm_vllm_fp8_agg_1024x1024_c16_tp8_ep1_667",
        "2026_04_06_llama_3_1_70b_h100_sxm_vllm_fp8_agg_1024x8192_c32_tp8_ep1_610",
        "2026_04_06_llama_3_1_70b_h100_sxm_vllm_fp8_agg_8192x1024_c64_tp8_ep1_794",
        "2026_04_06_llama_3_1_70b_h200_sxm_vllm_fp8_agg_1024x1024_c16_tp4_ep1_860",
        "2026_04_06_llama_3_1_70b_h200_sxm_vllm_fp8_agg_1024x1024_c32_tp4_ep1_682",
        "2026_04_06_llama_3_1_70b_h200_sxm_vllm_fp8_agg_1024x1024_c4_tp2_ep1_913",
        "2026_04_06_llama_3_1_70b_h200_sxm_vllm_fp8_agg_1024x1024_c64_tp2_ep1_683",
        "2026_04_06_llama_3_1_70b_h200_sxm_vllm_fp8_agg_1024x1024_c8_tp2_ep1_781",
        "2026_04_06_llama_3_1_70b_h200_sxm_vllm_fp8_agg_1024x8192_c4_tp8_ep1_549",
        "2026_04_06_llama_3_1_70b_h200_sxm_vllm_fp8_agg_8192x1024_c16_tp2_ep1_824",
        "2026_04_06_llama_3_1_70b_h200_sxm_vllm_fp8_agg_8192x1024_c16_tp4_ep1_691",
        "2026_04_06_llama_3_1_70b_h200_sxm_vllm_fp8_agg_8192x1024_c4_tp4_ep1_655",
    ]
)
