"""No adapter drops an image: it passes it on, or refuses the sample."""

import pytest
from trainers.pictures import images_of, shown_sample

from envsdk.errors import InvalidSample
from envsdk.trainers import check_samples


def test_an_adapter_refuses_images_unless_it_passes_them_on():
    sample = shown_sample()
    with pytest.raises(InvalidSample, match=r"sample 0, of trajectory 'pictures.*it has images \(3, .*tokens only"):
        check_samples([sample])
    with pytest.raises(InvalidSample, match="but its loss is blind"):
        check_samples([sample], no_images="its loss is blind")
    assert check_samples([sample], no_images=None) == [sample]
    assert len(set(images_of(sample))) == 2
