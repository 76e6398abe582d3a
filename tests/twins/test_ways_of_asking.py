"""Twins of one question in several spellings: flags, files, --set, Python; and of one answer in several forms.

Not here: settings that mean the same (test_same_settings), what two commands say of one thing (test_commands_agree).
"""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import strategies as st

import lanesim
from sim.costs.profile import Profile
from sim.report.results import read_summary
from tests.twins.drawn import PAIRS, questions, several
from tests.twins.twin import Asked, Pair, answer, dotted, flat, folder, nested, runs, said, twin, words

ONE_PROCESS = ("--workers", "1")


@twin(questions())
def test_flags_are_the_file_dotted_keys_and_values_over_another_file_and_in_a_file_the_same(asked: Asked) -> Pair:
    other = {**asked, "seed": asked["seed"] + 1, "output-len": 7}
    over = ("--seed", str(other["seed"]), "--output-len", "7")
    with folder() as place:
        path = place / "scenario.yaml"
        path.write_text(yaml.safe_dump(nested(asked)))
        said("compare", *words(asked), *ONE_PROCESS, "--json", str(place / "r.json"))
        found = [json.loads((place / "r.json").read_text()), answer("compare", {"set": dotted(asked)})]
        found += [json.loads(said("compare", str(path), *more, *ONE_PROCESS, "--json", "-")) for more in ((), over)]
    one = answer("compare", asked)
    return Pair([one] * 3 + [answer("compare", other)], found)


@twin(questions())
def test_flags_are_python(asked: Asked) -> Pair:
    mine = lanesim.compare(**flat(asked))
    there = answer("compare", asked)
    known = msgspec.to_builtins(mine)
    for later in ("evidence", "levels"):  # Of the command alone, which looks them up.
        there.pop(later), known.pop(later)
    return Pair(there, known)


LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
PLAIN = ("--profile", "h100-sxm/llama-3.1-8b", "--policy", "continuous", "--num-speculative-tokens", "0")
SEATS = ("--set", "engine.max_num_seqs=4")
DRAFTED = ("--profile", "h100-sxm/llama-3.1-8b+eagle3", "--policy", "continuous", "--acceptance", "length:2.5")


@pytest.mark.parametrize(
    ("model", "profile"),
    [
        ((LLAMA, "--gpu", "H100"), PLAIN),
        (("h100/" + LLAMA,), PLAIN),
        ((LLAMA, "--gpu", "h100", "--draft", "x/EAGLE3-LLaMA3.1", "--acceptance", "2.5"), DRAFTED),
        (("--serve", f"vllm serve {LLAMA} --max-num-seqs 4", "--gpu", "h100"), (*PLAIN, *SEATS)),
        ((LLAMA, "--gpu", "h100", "--input-len", "1.5k"), (*PLAIN, "--input-len", "1500")),
    ],
)
def test_a_model_on_a_gpu_and_the_line_that_starts_its_server_are_its_profile(
    model: tuple[str, ...], profile: tuple[str, ...]
) -> None:
    load = ("--num-prompts", "12", "--request-rate", "4", "--output-len", "8", *ONE_PROCESS, "--json", "-")
    asked, there = (json.loads(said("compare", *each, *load)) for each in (model, profile))
    assert asked["runs"] == there["runs"]


@twin(st.sampled_from(lanesim.profile_names()))
def test_what_profiles_show_prints_is_the_profile(name: str) -> Pair:
    shown = json.loads(said("profiles", "show", name, "--json", "-"))
    return Pair(
        msgspec.to_builtins(lanesim.load_profile(name)),
        {key: shown[key] for key in Profile.__struct_fields__ if key in shown},
    )


@twin(questions(policy=several, profiles=PAIRS), share=0.05)
def test_a_results_folder_is_the_json_and_the_scenario_of_either_asks_for_it_again(asked: Asked) -> Pair:
    first = answer("compare", asked)
    with folder() as place:
        said("compare", *words(asked), *ONE_PROCESS, "--out", str(place / "r"))
        loaded = read_summary(place / "r")
        (place / "scenario.yaml").write_text(yaml.safe_dump(first["scenario"]))
        paths = (place / "r" / "scenario.yaml", place / "scenario.yaml")
        again = [json.loads(said("compare", str(path), *ONE_PROCESS, "--json", "-")) for path in paths]
    return Pair([first] * 3, [loaded.plain, *again])


@twin(questions(policy=several, profiles=PAIRS, replications=2))
def test_policies_side_by_side_are_each_by_itself(asked: Asked) -> Pair:
    alone = [run for policy in asked["policy"] for run in runs({**asked, "policy": policy})]
    return Pair(runs(asked), alone)


@twin(questions(), st.integers(1, 3), st.integers(1, 3))
def test_the_first_replications_of_a_longer_comparison_are_a_shorter_one(asked: Asked, few: int, more: int) -> Pair:
    longer = runs({**asked, "replications": few + more})
    return Pair(runs({**asked, "replications": few}), longer[:few])


@twin(questions())
def test_a_simulation_is_the_first_run_of_a_comparison(asked: Asked) -> Pair:
    (run,) = runs(asked, "--verbose")
    one = lanesim.simulate(**flat(asked)).metrics
    return Pair({key: value for key, value in run.items() if key in one}, dict(one))


@twin(
    questions(policy=several, profiles=PAIRS, draws=0),
    st.lists(st.sampled_from((0.5, 1.0, 3.0)), min_size=2, unique=True),
)
def test_several_values_of_a_flag_are_a_comparison_each(asked: Asked, rates: list[float]) -> Pair:
    grid = answer("compare", {**asked, "request-rate": ",".join(map(str, rates))})["loads"]
    alone = [runs({**asked, "request-rate": rate}) for rate in rates]
    return Pair([point["comparison"]["runs"] for point in grid], alone)


def swept(asked: Asked, place: Path, key: str, values: list[Any], workers: int = 1) -> Any:
    """The frame of a sweep over `values` of a dotted key."""
    (place / "grid.yaml").write_text(yaml.safe_dump({"scenario": nested(asked), "grid": {key: values}}))
    said("sweep", str(place / "grid.yaml"), "--out", str(place / "store"), "--workers", str(workers))
    return lanesim.load(place / "store")


RATES = [0.5, 2.0]


@twin(questions(policy=several, profiles=PAIRS, replications=1), share=0.05)
def test_points_of_a_sweep_are_comparisons(asked: Asked) -> Pair:
    with folder() as place:
        frame = swept(asked, place, "workload.request_rate", RATES)
    pairs = []
    for rate in RATES:
        mine = lanesim.compare(**flat(asked) | {"request_rate": rate}).frame()
        mine = mine.set_index("policy")
        own = frame[frame["workload.request_rate"] == rate].set_index("policy").loc[mine.index]
        shared = [name for name in mine.columns if name in own.columns and mine[name].dtype.kind in "if"]
        assert len(shared) > 40, shared
        pairs.append((own[shared].fillna(-1).to_dict(), mine[shared].fillna(-1).to_dict()))
    return Pair(*zip(*pairs, strict=True))


@pytest.mark.nightly  # Ten seconds, most of them pictures.
@twin(questions(policy=several, profiles=PAIRS), share=0.02)
def test_a_report_shows_the_stores_figures(asked: Asked) -> Pair:
    with folder() as place:
        frame = swept(asked, place, "workload.request_rate", RATES)
        said("report", str(place / "store"), "--out", str(place / "page.html"))
        page = (place / "page.html").read_text()
    table = page.partition('id="points"')[2].partition("</table>")[0]
    shown = sorted(unescape(value) for value in re.findall(r'data-value="([^"]*)"', table))
    held = frame["mean_e2el_ms"].tolist()
    return Pair(sorted(held), sorted(each for each in held if any(_close(each, text) for text in shown)))


def _close(value: float, text: str) -> bool:
    try:
        return abs(float(text) - value) <= 1e-6 * abs(value)
    except ValueError:
        return False


@twin(questions(policy=several, profiles=PAIRS, replications=2))
def test_the_table_shows_the_figures_of_the_json(asked: Asked) -> Pair:
    from sim.names import duration

    text, found = said("compare", *words(asked), *ONE_PROCESS), answer("compare", asked)
    table = text.partition("\n\n")[2].splitlines()
    pairs = []
    for row in found["policies"]:
        shown = next(line.split() for line in table if line.startswith(f"{row['policy']} "))
        times = [row["mean"][key] for key in ("mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms")]
        wanted = " ".join("–" if value is None else duration(value) for value in times)
        pairs.append((" ".join(shown[1:])[: len(wanted)], wanted))
    return Pair(*zip(*pairs, strict=True))
