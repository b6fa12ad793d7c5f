"""os-ken's switch certification tests: a sample in every run, the whole by `make conformance`."""

from certification import catalogue, certify, sample, seed
from harness import test

# 276 tests in three minutes, of every kind; another sample for every commit.
SAMPLE = {"of10": 32, "of13": 190, "of14": 54}


def sampled(lab, version):
    chosen = seed()
    lab.note(f"SEED={chosen}")
    certify(lab, version, sample(version, SAMPLE[version], chosen))


@test(timeout=600)
def sample_of_1_0(lab):
    """A sample of the OpenFlow 1.0 suite."""
    sampled(lab, "of10")


@test(timeout=900)
def sample_of_1_3(lab):
    """A sample of the OpenFlow 1.3 suite: actions, set-fields and matches."""
    sampled(lab, "of13")


@test(timeout=600)
def sample_of_1_4(lab):
    """A sample of the OpenFlow 1.4 suite."""
    sampled(lab, "of14")


@test(timeout=2400, on_request=True)
def whole_1_0(lab):
    """All of the OpenFlow 1.0 suite."""
    certify(lab, "of10", catalogue("of10"))


@test(timeout=7200, on_request=True)
def whole_1_3(lab):
    """All of the OpenFlow 1.3 suite: 991 tests."""
    certify(lab, "of13", catalogue("of13"))


@test(timeout=7200, on_request=True)
def whole_1_4(lab):
    """All of the OpenFlow 1.4 suite."""
    certify(lab, "of14", catalogue("of14"))
