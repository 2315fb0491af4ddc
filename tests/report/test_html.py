"""The page as text: the same bytes every time, whole, within its size, and with every name escaped."""

import base64
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from tests.builders import (
    GPU,
    Situation,
    decide_on,
    document_of,
    failing,
    failing_on_cpu,
    golden_dataset,
    passing,
    reference_outputs,
    situations,
    stale_weights,
)
from tests.report.hostile import NASTY_TEXT, poison
from tests.report.pages import previews_of
from validator.golden.dataset import open_golden
from validator.golden.writer import Sample, write_golden
from validator.report import previews as previews_module
from validator.report.html import render as render_module
from validator.report.html.render import render_html
from validator.report.html.svg import LogAxis, decade, thin_cloud, thin_line
from validator.report.model import VerdictDocument
from validator.report.previews import PreviewsDocument, make_previews, read_previews, worst_samples
from validator.report.samples import as_cell, read_table, samples_table

DOCUMENTS = dict(situations())
VOID = {"meta", "img", "input", "br", "link"}


@pytest.fixture(scope="module")
def table() -> bytes:
    policy, evidence, _ = decide_on(GPU)
    return samples_table(policy, evidence, golden_dataset()).encode()


class Checker(HTMLParser):
    """Follows the tags, and keeps what could do anything."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def follow(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    return checker


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_page_is_well_formed_and_the_same_every_time(name: str) -> None:
    text = render_html(DOCUMENTS[name], table=None, previews=None)
    assert render_html(DOCUMENTS[name], table=None, previews=None) == text
    assert follow(text).tags.count("h1") == 1
    identifiers = re.findall(r' id="([^"]+)"', text)
    assert len(set(identifiers)) == len(identifiers)
    assert set(re.findall(r'href="#([^"]+)"', text)) <= set(identifiers)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=12)
@given(names=st.lists(NASTY_TEXT, min_size=1, max_size=12))
def test_whatever_the_names_only_our_own_tags_are_in_it(names: list[str]) -> None:
    document = poison(failing_on_cpu(), names)
    plain = follow(render_html(failing_on_cpu(), table=None, previews=previews_of(failing_on_cpu())))
    text = render_html(document, table=None, previews=previews_of(document))
    found = follow(text)
    assert set(found.tags) <= set(plain.tags) | {"b", "p"}
    assert found.tags.count("script") == found.tags.count("style") == 1
    assert not [name for name, _ in found.attributes if name.startswith("on") or name == "style"]
    links = [value or "" for name, value in found.attributes if name in ("href", "src")]
    assert all(re.fullmatch(r"#[\w-]+|data:image/png;base64,[\w+/=]+", link) for link in links)
    assert all(line.isprintable() for line in text.replace("\t", " ").split("\n"))


def test_too_large_a_page_gives_up_pictures_first_and_charts_of_samples_next(
    table: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = passing()
    previews = previews_of(document)
    whole = render_html(document, table=table, previews=previews)
    plain = render_html(document, table=table, previews=None)
    assert len(whole) > len(plain)
    monkeypatch.setattr(render_module, "SIZE_LIMIT_BYTES", len(plain.encode()))
    assert render_html(document, table=table, previews=previews) == plain
    monkeypatch.setattr(render_module, "SIZE_LIMIT_BYTES", len(plain.encode()) - 1)
    assert render_html(document, table=table, previews=previews) == render_html(document, table=None, previews=None)


def test_a_page_says_what_it_leaves_out(table: bytes) -> None:
    text = render_html(passing(), table=None, previews=None)
    assert "samples.csv was not there" in text
    assert "previews.json was left out" in text
    assert "samples.csv was not there" not in render_html(passing(), table=table, previews=previews_of(passing()))


def test_charts_are_not_drawn_from_the_table_of_another_check(table: bytes) -> None:
    said = "samples.csv was not there or is of another check"
    assert said not in render_html(passing(), table=table, previews=None)
    assert said in render_html(failing(), table=table, previews=None)
    assert said in render_html(passing(), table=b"".join(table.splitlines(keepends=True)[:-1]), previews=None)


def test_samples_beyond_their_limit_are_drawn_as_exceeded_and_no_others(table: bytes) -> None:
    beyond = 'class="dots exceeded"'
    assert beyond not in render_html(passing(), table=table, previews=None)
    situation = Situation(outputs={"onnxruntime-cpu": stale_weights(reference_outputs())})
    policy, evidence, _ = decide_on(situation)
    own = samples_table(policy, evidence, golden_dataset()).encode()
    assert beyond in render_html(document_of(situation), table=own, previews=None)


# --- Points -------------------------------------------------------------------------------------------------------

FLOATS = hnp.arrays(np.float64, st.integers(1, 400), elements=st.floats(allow_nan=True, width=64))


@given(values=FLOATS, columns=st.integers(1, 50))
def test_thinning_keeps_the_extremes_and_no_more_than_two_points_a_column(values: np.ndarray, columns: int) -> None:
    kept = thin_line(values, columns=columns)
    ranked = np.nan_to_num(values, nan=np.inf)
    assert len(kept) <= max(2 * columns, 1)
    assert ranked[kept].max() == ranked.max()
    assert ranked[kept].min() == ranked.min()


@given(st.lists(st.tuples(st.floats(0, 900), st.floats(0, 300)), min_size=1, max_size=200))
def test_a_thinned_cloud_has_a_point_near_every_point_and_keeps_its_edges(cloud: list[tuple[float, float]]) -> None:
    xs, ys = np.array(cloud).T
    kept = thin_cloud(xs, ys, pixels=3)
    for x, y in cloud:
        assert ((abs(xs[kept] - x) < 3) & (abs(ys[kept] - y) < 3)).any()
    assert {xs[kept].min(), xs[kept].max()} == {xs.min(), xs.max()}
    assert {ys[kept].min(), ys[kept].max()} == {ys.min(), ys.max()}


@given(st.floats())
def test_every_number_has_a_place_on_the_axis(value: float) -> None:
    axis = LogAxis(low=0.1, high=1e4, start=10, stop=510)
    assert 10 <= axis.place(value) <= 510
    assert axis.place_all(np.array([value]))[0] == pytest.approx(axis.place(value)) or value < 0


@given(st.integers(-300, 300))
def test_labels_of_decades_are_short_enough_for_the_room_beside_a_chart(power: int) -> None:
    assert len(decade(power)) <= 6
    assert float(decade(power).replace(",", "")) == pytest.approx(10.0**power)


# --- What the page is made of -------------------------------------------------------------------------------------


def test_the_table_of_samples_is_read_as_it_was_written(table: bytes) -> None:
    _, evidence, _ = decide_on(GPU)
    found = read_table(table)
    for backend in evidence.backends:
        for output in backend.main.outputs.values() if backend.main else ():
            columns = found[as_cell(backend.row.name), as_cell(output.name)]
            assert columns.max_abs_error.tolist() == output.rows["max_abs_error"].tolist()
            assert int(columns.flipped.sum()) == output.flips
    lines = table.decode().splitlines(keepends=True)
    with pytest.raises(ValueError, match="cells, or stand apart"):
        read_table("".join([*lines, lines[1]]).encode())


def test_the_distribution_counts_every_element_in_its_half_octave() -> None:
    _, evidence, _ = decide_on(GPU)
    document = passing()
    for backend, record in zip(evidence.backends, document.backends, strict=True):
        for output in record.outputs:
            assert backend.main is not None
            assert output.distribution is not None
            histogram = backend.main.outputs[output.name].histogram
            counts = output.distribution.counts
            assert output.distribution.zeros + sum(counts) == output.elements == histogram.sum()
            last = output.distribution.first + len(counts) - 1
            start = 2.0 ** (last // 2) * (1.5 if last % 2 else 1)
            assert start <= output.element_max < 1.51 * start
            assert counts[0] > 0
            assert counts[-1] > 0


def test_the_worst_samples_begin_with_the_one_that_is_furthest_out() -> None:
    document = failing()
    assert document.backends[4].outputs[0].worst_samples[0].sample == worst_samples(document)[0]
    assert len(worst_samples(document)) == previews_module.SAMPLES_MAX


def golden_with(folder: Path, **inputs: np.ndarray) -> VerdictDocument:
    samples = [Sample(inputs={name: value[at] for name, value in inputs.items()}) for at in range(64)]
    write_golden(folder, samples, name="golden", source="tests")
    return failing()


def test_previews_show_images_tokens_and_ranges(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    document = golden_with(
        tmp_path / "golden",
        a_photo=rng.integers(0, 255, (64, 3, 40, 120)).astype(np.uint8),
        b_tokens=rng.integers(0, 30_000, (64, 100)),
        c_vector=rng.normal(size=(64, 7)).astype(np.float32),
        d_left_out=rng.normal(size=(64, 7)).astype(np.float32),
    )
    made = make_previews(document, open_golden(tmp_path / "golden"))
    assert [s.sample for s in made.samples] == worst_samples(document)
    photo, tokens, vector = made.samples[0].inputs
    assert (photo.kind, photo.width, photo.height, photo.stretched) == ("image", 120, 40, False)
    with Image.open(io.BytesIO(base64.b64decode(photo.png))) as picture:
        assert picture.size == (96, 32)
    assert (tokens.kind, tokens.length, len(tokens.tokens)) == ("tokens", 100, 64)
    assert (vector.kind, vector.shape) == ("values", (7,))
    assert PreviewsDocument.model_validate_json(made.to_json()) == made


def test_previews_of_normalised_images_are_stretched_and_survive_what_is_not_finite(tmp_path: Path) -> None:
    images = np.random.default_rng(3).normal(size=(64, 1, 28, 28)).astype(np.float32)
    images[:, 0, 0, 0] = np.nan
    made = make_previews(golden_with(tmp_path / "golden", image=images), open_golden(tmp_path / "golden"))
    assert all(s.inputs[0].kind == "image" and s.inputs[0].stretched for s in made.samples)


def test_previews_of_another_check_or_none_at_all_are_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "previews.json"
    assert read_previews(path, "0" * 16) is None
    path.write_text(previews_of(failing()).to_json())
    assert read_previews(path, failing().check_id) is not None
    assert read_previews(path, "another") is None
    path.write_text(json.dumps({"check_id": "x", "samples": "</script>"}))
    assert read_previews(path, "x") is None


def test_pictures_that_are_none_or_larger_than_a_check_makes_them_are_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "previews.json"
    honest = previews_of(failing())
    for side, size in ((97, 97), (1 << 31, 1)):
        text = honest.to_json()
        for sample in honest.samples:
            png = next(i.png for i in sample.inputs if i.kind == "image")
            content = base64.b64decode(png)
            larger = content[:16] + side.to_bytes(4, "big") + size.to_bytes(4, "big") + content[24:]
            text = text.replace(png, base64.b64encode(larger).decode())
        path.write_text(text)
        assert read_previews(path, failing().check_id) is None
    path.write_text(re.sub('"png": "[^"]*"', '"png": "AAAA"', honest.to_json()))
    assert read_previews(path, failing().check_id) is None


def test_older_documents_are_read_and_shown_without_what_they_lack() -> None:
    document = failing()
    backends = tuple(
        b.model_copy(
            update={
                "outputs": tuple(o.model_copy(update={"distribution": None, "element_limit": None}) for o in b.outputs)
            }
        )
        for b in document.backends
    )
    older = json.loads(document.model_copy(update={"backends": backends}).to_json())
    for backend in older["backends"]:
        for output in backend["outputs"]:
            del output["distribution"], output["element_limit"]
    read = VerdictDocument.model_validate_json(json.dumps(older))
    assert "kept no histogram" in render_html(read, table=None, previews=None)
