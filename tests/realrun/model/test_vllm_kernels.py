# ruff: noqa: E402
"""The decoder on vLLM's operations computes what torch alone does, and launches fewer kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from realrun.kernels.device_passes import PassShape
from realrun.kernels.pair_kernels import PairKernels
from realrun.kernels.pair_options import PairOptions
from realrun.model import vllm_kernels
from realrun.model.attention import Attention, slot_tokens
from realrun.model.decoder import Decoder
from realrun.model.vllm_kernels import VllmAttention, VllmDecoder
from realrun.model.weights import Family
from sim.interface.work import Kind, Model
from tests.realrun.fake_cuda import Watcher, fake_gpu, full_size
from tests.realrun.support import prompts, ragged_hidden, rows, tiny_model
from tests.realrun.vllm_operations import vllm_operations

HOPPERS = [pytest.param(True, id="flash-3"), pytest.param(False, id="flash-2")]


class Gpu(NamedTuple):
    capability: str


@pytest.fixture
def operations() -> Iterator[None]:
    with vllm_operations(), torch.no_grad():
        yield


def ours(model: Any, is_hopper: bool, **sizes: Any) -> VllmDecoder:
    """Made past the checks: the plain operations take any device and precision."""

    class Ours(VllmDecoder):
        def _make_attention(self, name: Attention) -> VllmAttention:
            return VllmAttention(self.heads, self.kv, is_hopper=is_hopper)

    return Ours(model, attention=Attention.VLLM, **sizes)


@pytest.mark.usefixtures("operations")
@pytest.mark.parametrize("is_hopper", HOPPERS)
@pytest.mark.parametrize(
    "dimensions",
    [
        pytest.param({}, id="grouped"),
        pytest.param({"kv_heads": 1, "head_dim": 16}, id="one-kv-head"),
        pytest.param({"family": Family.QWEN2}, id="biased"),
        pytest.param({"family": Family.QWEN3}, id="normed-heads"),
    ],
)
def test_ragged_rows_beside_chunks_give_what_the_reference_gives(dimensions: dict[str, Any], is_hopper: bool) -> None:
    model, sizes = tiny_model(**dimensions), {"slots": 4, "max_tokens": 48}
    reference = Decoder(model, attention=Attention.MATH, **sizes)
    hidden = ragged_hidden(ours(model, is_hopper, **sizes))
    torch.testing.assert_close(hidden, ragged_hidden(reference), rtol=0, atol=1e-9)


@pytest.mark.usefixtures("operations")
@pytest.mark.parametrize("is_hopper", HOPPERS)
def test_a_prompt_gives_the_librarys_logits(is_hopper: bool) -> None:
    model = tiny_model()
    (text,) = prompts([24])
    expected = model(torch.tensor([text]), use_cache=False).logits[0]
    decoder = ours(model, is_hopper, slots=1, max_tokens=32)
    got = decoder.head(decoder.forward(torch.tensor(text), (rows([0], [0], [24], 24),)))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("operations")
@pytest.mark.parametrize(("name", "most"), [("llama-3.1-8b", 12), ("qwen3-32b", 13)])
@pytest.mark.parametrize("capability", ["9.0", "8.0"])
def test_a_layer_takes_few_launches_all_of_them_on_the_device(
    capability: str, name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decode and verify at full size; torch alone takes 17 and 19. Attention counts as two, for its splits."""
    monkeypatch.setattr("realrun.host.cuda.properties", lambda: Gpu(capability))
    with fake_gpu(monkeypatch):
        options = PairOptions(
            slots=8, max_tokens=1008, attention=Attention.VLLM, batch_buckets=(1, 8), cuda_graphs=True
        )
        kernels = PairKernels(full_size(name), None, options)
        for width in (1, 5):
            shape = PassShape(Kind.VERIFY, Model.TARGET, 8, width)
            with Watcher() as watcher:
                kernels.passes.run(shape, torch.empty(8, 4, dtype=torch.int64, device="cuda"))
            num_layers = len(kernels.target.layers)
            per_layer = [count // num_layers for count in watcher.launches.values()]
            assert sum(per_layer) <= most, watcher.launches
            assert watcher.launches["fused_add_rms_norm"] == 2 * num_layers
            assert watcher.launches["get_scheduler_metadata"] == (capability == "9.0")


@pytest.mark.usefixtures("operations")
def test_slots_hold_whole_pages() -> None:
    assert slot_tokens(Attention.VLLM, 655) == 656
    with pytest.raises(ValueError, match="whole pages: 40 tokens are no multiple of 16"):
        ours(tiny_model(), True, slots=1, max_tokens=40)


def test_where_the_wheel_is_absent_or_another_version_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vllm_kernels.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs vLLM's wheel.*: pip install --no-deps vllm==0\.33\.0"):
        vllm_kernels.operations()
    found = type("Spec", (), {"submodule_search_locations": ["/nowhere"]})
    monkeypatch.setattr(vllm_kernels.util, "find_spec", lambda name: found)
    monkeypatch.setattr(vllm_kernels.metadata, "version", lambda name: "0.19.0")
    with pytest.raises(ValueError, match=r"knows the kernels of vLLM 0\.33\.0, not 0\.19\.0"):
        vllm_kernels.operations()
    monkeypatch.setattr(vllm_kernels.metadata, "version", lambda name: vllm_kernels.VERSION)
    with pytest.raises(ValueError, match=r"attention='vllm': .*wants a torch of CUDA 13, or use 'flash'"):
        vllm_kernels.operations()


def test_it_runs_on_cuda_only() -> None:
    with pytest.raises(ValueError, match="attention='vllm' runs on cuda only"):
        VllmDecoder(tiny_model(), slots=1, max_tokens=16, attention=Attention.VLLM)
