"""The folder of images, on real photographs: scikit-learn ships two, a temple and a flower."""

from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets
import torch
from PIL import Image
from torchvision.models import AlexNet_Weights

from validator.errors import GoldenError, UsageError
from validator.golden.sources import open_source
from validator.golden.writer import write_golden

WEIGHTS = "AlexNet_Weights.IMAGENET1K_V1"


@pytest.fixture
def photos(tmp_path):
    """china.jpg and flower.jpg, 427 by 640 pixels, and a text file that is none."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for source in sklearn.datasets.load_sample_images().filenames:
        (folder / Path(source).name).write_bytes(Path(source).read_bytes())
    (folder / "LICENSE.txt").write_text("CC BY 2.0")
    return folder


def collect(folder, **options):
    return list(open_source(str(folder), **options).samples)


def sort_into_classes(photos):
    for name, place in (("china.jpg", "temple"), ("flower.jpg", "dahlia")):
        (photos / place).mkdir()
        (photos / name).rename(photos / place / name)


def test_without_transforms_a_sample_is_the_pixels(photos):
    samples = collect(photos)
    assert [sample.id for sample in samples] == ["china.jpg", "flower.jpg"]
    reference = sklearn.datasets.load_sample_image("flower.jpg")
    assert samples[1].inputs["input"].dtype == np.uint8
    np.testing.assert_array_equal(samples[1].inputs["input"], reference.transpose(2, 0, 1))
    assert samples[1].label is None


def test_transforms_are_those_of_the_weights(photos):
    samples = collect(photos, transforms=WEIGHTS, input_name="pixels")
    reference = AlexNet_Weights.IMAGENET1K_V1.transforms()(Image.open(photos / "china.jpg"))
    assert torch.equal(samples[0].inputs["pixels"], reference)


def test_the_manifest_says_how_pixels_became_numbers(photos, tmp_path):
    """Another decoder or resize gives other samples, so a verifier has to know."""
    opened = open_source(str(photos), transforms=WEIGHTS)
    dataset = write_golden(tmp_path / "set", opened.samples, name=opened.default_name, source=opened.description)
    assert dataset.manifest.name == "photos"
    assert dataset.manifest.source.startswith(f"images photos, transforms {WEIGHTS}, torchvision ")
    assert dataset.read(0, 2)["input"].shape == (2, 3, 224, 224)
    assert str(tmp_path) not in dataset.manifest.canonical_text()


def test_class_folders_are_labels_in_sorted_order(photos):
    sort_into_classes(photos)
    assert [(sample.id, sample.label) for sample in collect(photos)] == [
        ("dahlia/flower.jpg", 0),
        ("temple/china.jpg", 1),
    ]


def test_grey_and_transparent_images_become_rgb(tmp_path):
    Image.new("L", (5, 4), 7).save(tmp_path / "grey.png")
    Image.new("RGBA", (5, 4)).save(tmp_path / "clear.WEBP", format="webp")
    assert [sample.inputs["input"].shape for sample in collect(tmp_path)] == [(3, 4, 5), (3, 4, 5)]


@pytest.mark.parametrize("content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n broken"], ids=["empty", "text", "png"])
def test_an_unreadable_image_is_named(photos, content):
    (photos / "broken.png").write_bytes(content)
    with pytest.raises(GoldenError, match=r"the image broken\.png cannot be read"):
        collect(photos)


def test_an_image_cut_short_is_named(photos):
    content = (photos / "flower.jpg").read_bytes()
    (photos / "flower.jpg").write_bytes(content[: len(content) // 2])
    with pytest.raises(GoldenError, match=r"the image flower\.jpg cannot be read: .*truncated"):
        collect(photos)


def test_a_folder_without_images(tmp_path):
    with pytest.raises(GoldenError, match="holds no image") as caught:
        collect(tmp_path)
    assert ".webp" in caught.value.hint


def test_images_beside_class_folders(photos):
    sort_into_classes(photos)
    (photos / "extra.jpg").write_bytes((photos / "temple" / "china.jpg").read_bytes())
    with pytest.raises(GoldenError, match=r"both images and folders: extra\.jpg, dahlia"):
        collect(photos)


def test_an_empty_class_folder_would_shift_the_labels(photos):
    sort_into_classes(photos)
    (photos / "house").mkdir()
    with pytest.raises(GoldenError, match="the class folder house"):
        collect(photos)


def test_a_folder_within_a_class_folder(photos):
    sort_into_classes(photos)
    (photos / "temple" / "night").mkdir()
    with pytest.raises(GoldenError, match="temple/night"):
        collect(photos)


@pytest.mark.parametrize("name", ["AlexNet_Weights.NOPE", "Nope_Weights.X", "nope", "AlexNet_Weights"])
def test_weights_that_torchvision_does_not_know(photos, name):
    with pytest.raises(UsageError, match=f"torchvision has no weights {name}"):
        collect(photos, transforms=name)
