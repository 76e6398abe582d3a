"""Flags and keys that servers know, names only, as read from the sources inside their wheels on 2026-11-22.

vllm 0.33.0 (files of 2026-11-01): vllm/engine/arg_utils.py, its groups of model, parallelism, cache, scheduler and
vLLM; fields of SpeculativeConfig in vllm/config/speculative.py; vllm/benchmarks/serve.py and datasets/datasets.py.
sglang 0.5.23 (files of 2026-10-30): sglang/srt/arg_groups/fields, its model, parallel, schedule and spec, and the
graph backends of exec_. Flags that are not in these lists may exist: the groups not named were left out.
"""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


VLLM_SERVE = _names("""
--additional-config --all2all-backend --allow-deprecated-quantization --allowed-local-media-path
--allowed-media-domains --async-scheduling --attention-config --aux-output-config --block-size --code-revision
--compilation-config --config-format --convert --cp-kv-cache-interleave-size --cpu-distributed-timeout-seconds
--data-parallel-address --data-parallel-backend --data-parallel-external-lb --data-parallel-hybrid-lb
--data-parallel-multi-port-external-lb --data-parallel-rank --data-parallel-rpc-port --data-parallel-size
--data-parallel-size-local --data-parallel-start-rank --dbo-decode-token-threshold --dbo-prefill-token-threshold
--dcp-comm-backend --dcp-kv-cache-interleave-size --dcp-q-replicate --decode-context-parallel-size --device-ids
--diffusion-config --disable-cascade-attn --disable-chunked-mm-input --disable-custom-all-reduce
--disable-hybrid-kv-cache-manager --disable-nccl-for-dp-synchronization --disable-sliding-window
--distributed-executor-backend --distributed-timeout-seconds --dp-sync-interval --dtype --ec-manager-config
--ec-transfer-config --elastic-ep-max-dp-size --enable-batch-sharded-sampling --enable-chunked-prefill
--enable-cumem-allocator --enable-dbo --enable-elastic-ep --enable-ep-weight-filter --enable-eplb
--enable-expert-parallel --enable-fault-tolerance --enable-hc-sp --enable-mamba-shared-prefix-checkpoint
--enable-nccl-comm-suspend --enable-prefix-caching --enable-prompt-embeds --enable-return-routed-experts
--enable-shm-tensor-arena --enable-sleep-mode --enable-trace-replay --enforce-eager --engram-config --eplb-config
--expert-placement-strategy --fault-tolerance-config --generation-config --gpu-memory-utilization --hf-config-path
--hf-overrides --hf-token --io-processor-plugin --kernel-config --kv-cache-dtype --kv-cache-dtype-skip-layers
--kv-cache-memory-bytes --kv-events-config --kv-offloading-backend --kv-offloading-size --kv-sharing-fast-prefill
--kv-transfer-config --logits-processors --logprobs-mode --long-prefill-token-threshold
--long-prefill-token-threshold-adaptive --mamba-block-size --mamba-cache-dtype --mamba-cache-mode
--mamba-ssm-cache-dtype --master-addr --master-port --max-logprobs --max-model-len --max-num-active-seqs
--max-num-batched-tokens --max-num-queued-reqs --max-num-queued-tokens --max-num-scheduled-tokens --max-num-seqs
--max-parallel-loading-workers --model --model-class-overrides --model-impl --nnodes --node-rank
--num-gpu-blocks-override --numa-bind --numa-bind-cpus --numa-bind-nodes --optimization-level
--override-generation-config --performance-mode --pipeline-parallel-size --pooler-config
--prefill-context-parallel-size --prefill-schedule-interval --prefix-cache-retention-interval
--prefix-caching-hash-algo --prefix-match-unit --profiler-config --quantization --quantization-config
--ray-workers-use-nsight --reasoning-config --renderer-num-workers --replayssm-buffer-len --return-sampling-mask
--revision --runner --scheduler-cls --scheduler-reserve-full-isl --scheduling-policy --seed --served-model-name
--skip-tokenizer-init --sleep-mode-backend --sleep-mode-offload-cudagraph --sleep-preserve-parameter-names
--spec-method --spec-model --spec-tokens --speculative-config --stream-interval --structured-outputs-config
--swa-bounded-replay --tensor-parallel-size --tokenizer --tokenizer-mode --tokenizer-revision --trust-remote-code
--ubatch-size --use-fp64-gumbel --use-replayssm --watchdog-config --watermark --watermark-config
--weight-transfer-config --worker-cls --worker-extension-cls
""")
VLLM_BENCH_SERVE = _names("""
--append-result --backend --base-url --burstiness --chat-template-kwargs --dataset-name --dataset-path
--disable-shuffle --disable-tqdm --enable-multimodal-chat --endpoint --extra-body --frequency-penalty --goodput
--header --host --ignore-eos --input-len --insecure --label --logprobs --max-concurrency --metadata
--metric-percentiles --min-p --model --no-oversample --no-reranker --no-stream --num-prompts --num-warmups
--output-len --percentile-metrics --port --presence-penalty --probe-request-rate --profile --random-batch-size
--random-input-len --random-output-len --random-prefix-len --random-range-ratio --ready-check-timeout-sec
--repetition-penalty --request-id-prefix --request-rate --result-dir --result-filename --save-detailed --save-result
--seed --self-timed --served-model-name --skip-chat-template --skip-tokenizer-init --temperature --tokenizer
--tokenizer-mode --top-k --top-p --trust-remote-code --use-beam-search
""")
VLLM_SPECULATIVE_CONFIG = _names("""
attention_backend code_revision disable_eagle_block_drop disable_lookahead_block_hashes disable_padded_drafter_batch
draft_lm_head_quantization draft_sample_method draft_tensor_parallel_size dspark_draft_topk
enable_adaptive_verification enforce_eager fly_entropy_threshold fly_entropy_top_k fly_window_size
index_share_for_mtp_iteration kv_cache_dtype max_model_len method model moe_backend num_speculative_tokens
num_speculative_tokens_per_batch_size parallel_drafting prompt_lookup_max prompt_lookup_min quantization
rejection_sample_method revision suffix_decoding_max_cached_requests suffix_decoding_max_spec_factor
suffix_decoding_max_tree_depth suffix_decoding_min_token_prob synthetic_acceptance_length synthetic_acceptance_rates
tensor_parallel_size use_heterogeneous_vocab use_local_argmax_reduction xpress_topc
""")
SGLANG_LAUNCH_SERVER = _names("""
--abort-on-priority-when-disabled --attn-cp-size --attn-dp-size --c128-page-size
--checkpoint-engine-wait-weights-before-ready --chunked-prefill-size --context-length --cp-strategy
--cuda-graph-backend-decode --cuda-graph-backend-prefill --custom-weight-loader --dcp-comm-backend
--dcp-replicate-q-proj --dcp-size --decrypted-config-file --decrypted-draft-config-file --default-priority-value
--delete-ckpt-after-loading --disable-attn-tp-gather --disable-chunked-prefix-cache --disable-hybrid-swa-memory
--disable-overlap-schedule --disable-priority-preemption --dist-init-addr --dist-timeout --download-dir --dp-size
--dtype --dwdp-size --elastic-ep-initial-size --enable-attn-tp-input-scattered --enable-cp-decode-attn-tp
--enable-dense-mlp-attn-tp --enable-dp-attention-local-control-broadcast --enable-dp-lm-head
--enable-dsa-cache-layer-split --enable-dynamic-chunking --enable-kv-cache-sharding --enable-layernorm-sp
--enable-megamoe-for-layernorm-sp --enable-mixed-chunk --enable-multi-layer-eagle --enable-p2p-check
--enable-prefill-cp --enable-prefill-delayer --enable-priority-scheduling --enable-shared-experts-attn-tp
--enable-tp-lm-head-all-to-all --engine-info-bootstrap-port --ep-join-rank-offset --ep-size --gated-launch-port
--is-embedding --json-model-override-args --kv-cache-dtype --load-balance-method --load-format
--mamba-full-memory-ratio --max-ep-size --max-mamba-cache-size --max-prefill-tokens --max-queued-requests
--max-running-requests --max-total-tokens --mem-fraction-static --min-free-slots-delay --model-checksum
--model-config-parser --model-impl --model-loader-extra-config --model-path --modelexpress-config
--modelopt-checkpoint-restore-path --modelopt-checkpoint-save-path --modelopt-export-path --modelopt-quant
--moe-dense-tp-size --moe-dp-size --nccl-port --nnodes --node-rank --num-continuous-decode-steps --page-size
--pp-async-batch-depth --pp-max-micro-batch-size --pp-size --prefill-decode-interval
--prefill-decode-interval-min-bs --prefill-delayer-forward-passes-buckets --prefill-delayer-max-delay-ms
--prefill-delayer-max-delay-passes --prefill-delayer-queue-min-ratio --prefill-delayer-token-usage-low-watermark
--prefill-delayer-wait-seconds-buckets --prefill-max-requests --prefill-only-disable-kv-cache
--priority-scheduling-preemption-threshold --qsa-indexer-dtype --quantization --quantization-param-path
--quantize-and-serve --remote-instance-weight-loader-backend --remote-instance-weight-loader-seed-instance-ip
--remote-instance-weight-loader-seed-instance-service-port --remote-instance-weight-loader-send-weights-group-ports
--remote-instance-weight-loader-start-seed-via-transfer-engine --retraction-policy --revision --rl-quant-profile
--schedule-conservativeness --schedule-low-priority-values-first --schedule-policy --scheduler-recv-interval
--shared-experts-tp-size --spec-trace-dir --speculative-accept-threshold-acc --speculative-accept-threshold-single
--speculative-adaptive --speculative-adaptive-config --speculative-algorithm --speculative-attention-mode
--speculative-dflash-block-size --speculative-domino-candidate-pool-size --speculative-draft-attention-backend
--speculative-draft-kv-cache-dtype --speculative-draft-load-format --speculative-draft-model-path
--speculative-draft-model-quantization --speculative-draft-model-revision --speculative-draft-sink-size
--speculative-draft-window-size --speculative-dsa-topk-backend
--speculative-dspark-align-verify-tokens-to-graph-tier --speculative-dspark-block-size
--speculative-dspark-confidence-sts-path --speculative-dspark-sps-table-path --speculative-eagle-topk
--speculative-enable-w4a4-mxfp4-megamoe --speculative-moe-a2a-backend --speculative-moe-runner-backend
--speculative-ngram-capacity --speculative-ngram-external-corpus-max-tokens --speculative-ngram-external-corpus-path
--speculative-ngram-external-sam-budget --speculative-ngram-match-type --speculative-ngram-max-bfs-breadth
--speculative-ngram-max-trie-depth --speculative-ngram-min-bfs-breadth --speculative-num-draft-tokens
--speculative-num-steps --speculative-token-map --speculative-use-block-verification
--speculative-use-rejection-sampling --startup-weight-load-mode --swa-full-tokens-ratio --swa-prefix-tails --tp-size
--trust-remote-code --uno-lora-path --weight-cache-mode --weight-cache-socket --weight-cache-timeout
--weight-loader-disable-mmap --weight-loader-drop-cache-after-load --weight-loader-prefetch-checkpoints
--weight-loader-prefetch-num-threads
""")
VLLM_METHODS = _names("ngram draft_model suffix eagle eagle3 mtp dflash dspark")
SGLANG_ALGORITHMS = _names("EAGLE EAGLE3 NEXTN STANDALONE NGRAM DFLASH DSPARK UNO")
