"""The per-sample table: every sample of every output, in full, and nothing that a spreadsheet would run."""

import csv
import io
from dataclasses import replace

import pytest

from tests.builders import CLASSES, SAMPLES, Situation, evidence_of, golden_dataset
from validator.golden.format import Stratum
from validator.policy import Policy
from validator.report.samples import COLUMNS, TableError, as_cell, clean_table, samples_table

POLICY = Policy(required=("eager-cpu", "onnxruntime-cpu"), batch_size=16)


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_every_sample_of_every_output_of_every_candidate_has_a_line() -> None:
    table = read(samples_table(POLICY, evidence_of(Situation()), golden_dataset()))
    assert tuple(table[0]) == COLUMNS
    assert len(table) == 2 * 2 * SAMPLES
    assert {line["backend"] for line in table} == {"eager-cpu", "onnxruntime-cpu"}
    assert all(0 <= int(line["top1_reference"]) < CLASSES for line in table)


def test_numbers_are_those_of_the_comparison_in_full() -> None:
    gathered = evidence_of(Situation())
    main = gathered.backends[2].main
    assert main is not None
    rows = main.outputs["logits"].rows
    lines = [
        line
        for line in read(samples_table(POLICY, gathered, golden_dataset()))
        if (line["backend"], line["output"]) == ("onnxruntime-cpu", "logits")
    ]
    assert [float(line["max_abs_error"]) for line in lines] == rows["max_abs_error"].tolist()
    assert [float(line["rms_error"]) ** 2 * CLASSES for line in lines] == pytest.approx(rows["sum_sq_error"].tolist())
    assert all(0 < float(line["error_ratio_own_sample"]) < 30 for line in lines)


def test_the_baseline_has_no_floor_but_its_own_and_shows_no_ratio() -> None:
    table = read(samples_table(POLICY, evidence_of(Situation()), golden_dataset()))
    assert {line["error_ratio_own_sample"] for line in table if line["backend"] == "eager-cpu"} == {""}


def test_labels_and_strata_stand_beside_what_they_are_about() -> None:
    strata = (Stratum.SCALES, *[Stratum.REPRESENTATIVE] * (SAMPLES - 1))
    gathered = replace(evidence_of(Situation()), strata=strata, labels=tuple(range(SAMPLES)))
    table = read(samples_table(POLICY, gathered, golden_dataset()))
    assert [(line["stratum"], line["label"]) for line in table[:2]] == [("scales", "0"), ("representative", "1")]


def test_names_are_no_formulas_and_no_control_characters() -> None:
    gathered = evidence_of(Situation())
    backend = gathered.backends[2]
    assert backend.main is not None
    nasty = "=HYPERLINK(1)\x1b[2J,\n"
    outputs = {nasty: replace(backend.main.outputs["logits"], name=nasty)}
    renamed = replace(backend, main=replace(backend.main, outputs=outputs))
    table = read(samples_table(POLICY, replace(gathered, backends=(renamed,)), golden_dataset()))
    assert {line["output"] for line in table} == {"'=HYPERLINK(1)\\x1b[2J,\\n"}


@pytest.mark.parametrize("name", [" =1+1", "\uff1d1", "\uff0b1", "\uff0d1", "\uff20x", " " * 3 + "@x", "=" + "x" * 300])
def test_formulas_behind_blanks_and_in_full_width_are_cells_as_well(name: str) -> None:
    assert as_cell(name).startswith("'")
    assert as_cell(as_cell(name)) == as_cell(name)


def test_a_table_that_somebody_else_wrote_is_cleaned_and_one_of_a_check_comes_back_as_it_is() -> None:
    table = samples_table(POLICY, evidence_of(Situation()), golden_dataset())
    assert clean_table(table.encode()) == table.encode()
    heading, first, *_ = table.splitlines(keepends=True)
    (line,) = read(clean_table((heading + first.replace("eager-cpu", "=cmd()")).encode()).decode())
    assert line["backend"] == "'=cmd()"
    with pytest.raises(TableError):
        clean_table((heading + first.replace(",0,", ",=cmd(),", 1)).encode())
