"""Master weights of networks that compute in bf16."""

import pytest
import torch

from rag.training.precision import MasterWeights


@pytest.mark.needs_bf16
def test_master_weights_keep_updates_that_bf16_would_lose() -> None:
    layer = torch.nn.Linear(4, 4, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    master = MasterWeights(layer, "bf16")
    optimizer = torch.optim.SGD(master.groups(1e-3), lr=1e-3)
    for _ in range(100):
        layer(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
        master.gather_gradients()
        optimizer.step()
        master.write_back()
    assert torch.allclose(master.master[0], torch.full((4, 4), 0.9), atol=1e-4)
    assert torch.allclose(layer.weight.float(), torch.full((4, 4), 0.9), atol=4e-3)
