import pytest
import torch


@pytest.fixture(autouse=True)
def seed():
    """Starts each test from the same seed. PyTorch draws another one for each process."""
    torch.manual_seed(0)
