"""The README's benchmark picture and tables are those of the published files."""

import pytest

from ampcheck.bench.core import table
from ampcheck.bench.core.model import Group
from ampcheck.bench.run import readme
from ampcheck.bench.run.summary import by_estimate, compare_with_default
from ampcheck.bench.run.variants import NO_PRODUCT
from ampcheck.report.benchmarks import pages, run_groups
from ampcheck.report.benchmarks.run_groups import BenchHistory
from tests.report.made_bench import made_group

COLUMN = ("cpu", "eager")


def column(**fields: object) -> dict[tuple[str, str], dict[str, Group]]:
    """A column of one workload, in which bf16 is four times as fast."""
    return {COLUMN: {"mm-64": made_group("mm-64", seconds=4e-3, variants={"fp32": 1, "bf16": 4}, **fields)}}


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("faster", "4.00 ms → 1.00 ms, **4.00×** faster"),
        ("invalid", "invalid"),
        ("not measured", "not measured"),
    ],
)
def test_a_cell_has_both_times_and_the_ratio_of_what_counts(verdict: str, words: str) -> None:
    made = column()
    bf16 = made[COLUMN]["mm-64"].variants[1]
    bf16.verdict, bf16.speed = verdict, 4.0 if verdict == "faster" else None
    text = readme.markdown(made)
    assert words in text
    assert ("ms" in text) == ("ms" in words)
    estimate = column(estimate=True)
    assert "cpu eager (estimate)" in readme.markdown(estimate)
    assert "cpu eager (estimate)" in readme.picture(estimate)


def tpu(device: str, *speeds: tuple[str, float]) -> tuple[tuple[str, str], dict[str, Group]]:
    """A column of estimates: by workload, how fast bf16 is beside a default that takes a quarter of float32's time."""
    groups = {}
    for workload, speed in speeds:
        variants = {"fp32": 1, "fp32-default": 4, "bf16": 4 * speed}
        groups[workload] = made_group(workload, device, seconds=4e-3, variants=variants, compiler="jit", estimate=True)
        compare_with_default(groups[workload], by_estimate)
    return (device, "jit"), groups


def test_a_tpu_has_a_column_beside_its_default() -> None:
    columns = dict([tpu("tpu-v5e", ("mm-1024", 0.8), ("mm-8192", 0.99))])
    text = readme.markdown(columns)
    assert "| tpu-v5e jit (estimate), float32 in full" in text
    assert "| tpu-v5e jit (estimate), float32 by default" in text
    assert "4.00 ms → 1.25 ms, **3.20×** faster" in text
    assert "1.00 ms → 1.25 ms, **0.80×** slower" in text
    assert "1.00 ms → 1.01 ms, **0.99×** same" in text
    assert "beside its default" in readme.picture(columns)
    assert "by default" not in readme.markdown(column())


def test_the_sentence_counts_where_autocast_is_slower_than_the_default() -> None:
    columns = dict([tpu("tpu-v5e", ("mm-1024", 0.8), ("mm-8192", 0.99), ("add", 1.3)), tpu("tpu-v6e", ("add", 0.5))])
    assert readme.sentence(columns).endswith(
        "bf16 under autocast is slower in 2 of 3 workloads (1 of them by more than 2%) on tpu-v5e and in 1 of 1 "
        "workloads on tpu-v6e.\n"
    )
    assert readme.sentence(column()) == ""
    without = dict([tpu("tpu-v5e", ("add", 0.8))])
    default = without["tpu-v5e", "jit"]["add"].variants[1]
    default.verdict, default.reason, default.seconds = "not measured", NO_PRODUCT, None
    without["tpu-v5e", "jit"]["add"].variants[2].default_speed = None
    assert readme.sentence(without) == "", "without a product there is nothing to shorten"
    assert "no product" in readme.markdown(without)


# ---- what the pages show of the published files


@pytest.fixture(scope="module")
def history() -> BenchHistory:
    return run_groups.load(sorted(readme.PUBLISHED.glob("*.jsonl")))


def test_the_pages_have_the_speed_beside_the_default(history: BenchHistory) -> None:
    groups = {group.device: group for group in pages.results(history, [])["groups"] if group.workload == "mm-1024"}
    assert [table.ratio(groups["tpu-v5e"].variant("bf16"))] == ["2.41×"]
    assert [table.default_ratio(groups["tpu-v5e"].variant(name)) for name in ("fp32", "fp32-default")] == ["", ""]
    defaults = {device: table.default_ratio(group.variant("bf16")) for device, group in groups.items()}
    assert defaults == {"cpu": "", "jax": "", "tpu-v5e": "0.832× slower", "tpu-v6e": "0.864× slower"}


def test_the_page_has_what_the_published_files_say() -> None:
    text = readme.PAGE.read_text(encoding="utf-8")
    between = text.split(readme.BEGIN)[1].split(readme.END)[0]
    assert between == readme.text(readme.published()), "run python -m ampcheck.bench.run.readme"
    assert between.count("**") >= 20
