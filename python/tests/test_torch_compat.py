"""PyTorch's module names over netcl: programs that change their import only, and names that say what to write instead. Runs without PyTorch."""

import subprocess
import sys

import numpy as np
import pytest

import netcl as nc
import netcl.torch_compat as torch
import netcl.torch_compat.nn as nn
import netcl.torch_compat.nn.functional as F
from netcl.torch_compat.utils.data import DataLoader, TensorDataset

PROGRAM = """
import netcl; netcl.set_default_device({device!r})
import netcl.torch_compat; netcl.torch_compat.install()
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 16)
        self.fc2 = nn.Linear(16, 3)

    def forward(self, x):
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)

torch.manual_seed(1)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x = torch.randn(96, 8)
y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
model = Net().to(device)
optimizer = optim.Adam(model.parameters(), lr=0.05)
scheduler = StepLR(optimizer, step_size=1, gamma=0.9)
losses = []
for epoch in range(6):
    model.train()
    for data, target in loader:
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
    scheduler.step()
    losses.append(loss.item())
model.eval()
with torch.no_grad():
    correct = model(x).argmax(dim=1, keepdim=True).eq(y.view(-1, 1)).sum().item()
assert losses[-1] < 0.6 * losses[0] and correct > 70, (losses, correct)
torch.save(model.state_dict(), {path!r})
model.load_state_dict(torch.load({path!r}, map_location="cpu"))
print("done")
"""


def test_a_program_of_pytorch_runs_with_install(tmp_path):
    code = PROGRAM.format(device=nc.default_device().name, path=str(tmp_path / "model.pt"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "done", done.stderr[-2000:]


def test_names_are_those_of_netcl():
    assert torch.Tensor is nc.Tensor and torch.relu is nc.relu and nn.Linear is nc.nn.Linear and F.softmax is nc.functional.softmax
    assert torch.optim.AdamW is nc.optim.AdamW and DataLoader is nc.data.DataLoader and TensorDataset is nc.data.TensorDataset
    assert torch.float32 is nc.float32 and torch.long is nc.int32 and torch.bool is nc.bool_ and not torch.cuda.is_available()
    assert torch.zeros(2, device="cpu").device == nc.default_device() == torch.device("cpu") and torch.compile(torch.relu) is torch.relu
    torch.backends.cudnn.benchmark = True
    assert torch.backends.cudnn.benchmark and not torch.backends.mps.is_available()
    assert torch.nn.utils.clip_grad_norm_ is nc.utils.clip_grad_norm_ and torch.utils.checkpoint.checkpoint is nc.utils.checkpoint.checkpoint
    assert len(torch.names()) > 380 and set(nc._torch.__all__) <= set(nc.__all__)


@pytest.mark.parametrize("name, words", [("float64", "float32"), ("stft", "complex"), ("svd", "NumPy"), ("sparse_coo_tensor", "dense"), ("jit", "OpGraph"), ("no_such_name", "docs/book/pytorch.md")])
def test_other_names_say_what_to_write(name, words):
    with pytest.raises(AttributeError, match=words):
        getattr(torch, name)


def test_devices_and_arguments_that_are_refused():
    with pytest.raises(NotImplementedError, match="netcl has"):
        torch.device("cuda:0")
    with pytest.raises(AttributeError, match="default_device"):
        torch.cuda.current_stream
    with pytest.raises(AttributeError, match="NoSuchLayer"):
        nn.NoSuchLayer
    with pytest.raises(NotImplementedError, match="pin_memory"):
        torch.zeros(2, pin_memory=True)
    for call, words in ((lambda x: x.double(), "float"), (lambda x: x.cuda(), "devices"), (lambda x: x.svd(), "numpy")):
        with pytest.raises(NotImplementedError, match=words):
            call(nc.ones(3))


def test_long_is_int32_without_overflow():
    assert nc.tensor([1.9, -2.9]).long().tolist() == [1, -2] and nc.tensor([True]).long().dtype is nc.int32 and torch.LongTensor([3]).dtype is nc.int32
    for x in (nc.tensor([3e9]), nc.tensor([2**31], dtype="uint32"), nc.tensor([-3e9])):
        with pytest.raises(OverflowError, match="int32"):
            x.long()


def test_attributes_that_programs_ask_for():
    x = torch.ones(2, requires_grad=True)
    assert x.grad_fn is None and (x * 2).grad_fn is not None and x.is_cpu and not x.is_cuda and torch.ones(2).grad_fn is None
    for call, words in ((lambda x: x.hardshrink(), "nn.functional"), (lambda x: x.select_scatter(x, 0, 0), "clone"), (lambda x: x.digamma_(), "scipy"), (lambda x: x.lu(), "NumPy")):
        with pytest.raises(NotImplementedError, match=words):
            call(torch.ones(2))


def test_constructors_of_old_programs():
    assert torch.Tensor(2, 3).tolist() == [[0.0] * 3] * 2 and torch.Tensor([[1, 2]]).dtype is nc.float32 and torch.Tensor([[1, 2]]).tolist() == [[1.0, 2.0]]
    assert torch.FloatTensor(np.array([1.0, 2.0])).tolist() == [1.0, 2.0] and torch.BoolTensor([1, 0]).tolist() == [True, False] and torch.LongTensor(2).tolist() == [0, 0]
    assert torch.ones(2).type(torch.LongTensor).dtype is nc.int32 and not torch.accelerator.is_available() and torch.accelerator.current_accelerator() is None
    x = torch.autograd.Variable(torch.ones(2), requires_grad=True)
    assert x.requires_grad and torch.autograd.Variable(x) is x
    model = nn.DataParallel(nn.Linear(3, 2))
    assert list(model.state_dict()) == ["module.weight", "module.bias"] and model(torch.ones(1, 3)).shape == (1, 2)
    for call in (lambda: torch.distributed.init_process_group("nccl"), lambda: nn.parallel.DistributedDataParallel(model), lambda: nn.DataParallel(model, device_ids=[0])):
        with pytest.raises(NotImplementedError, match="netcl.distributed"):
            call()


def test_what_is_quick_without_pytorch(tmp_path):
    x = nc.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert x.size == 6 and x.size() == (2, 3) and x.size(1) == 3 and f"{x.sum():.1f}" == "15.0" and x.data.tolist() == x.tolist()
    assert x.clamp_(1, 4).add_(1).mul(2).sub(1, alpha=2).tolist() == [[2, 2, 4], [6, 8, 8]]
    assert nc.einsum("ij,kj->ik", x, x).shape == (2, 2) and nc.topk(x, 1, dim=0).values.shape == (1, 3)
    y = x[:, 1]
    y += 10
    assert x[0, 1].item() == 12.0, "a column is a view"
    nc.save({"x": x, "step": 3}, tmp_path / "x.pt")
    found = nc.load(tmp_path / "x.pt")
    assert found["step"] == 3 and nc.equal(found["x"], x)
    w = nc.tensor([1.0, 2.0], requires_grad=True)
    seen = []
    w.register_hook(lambda g: seen.append(g.tolist()))
    assert nc.autograd.grad((w * w).sum(), [w])[0].tolist() == [2.0, 4.0] and w.grad is None and seen == [[2.0, 4.0]]
    optimizer = nc.optim.AdamW([w], lr=0.1)
    optimizer.param_groups[0]["lr"] = 0.0
    (w * w).sum().backward()
    optimizer.step()
    assert w.tolist() == [1.0, 2.0] and optimizer.state_dict()["state"][0]["step"] == 1.0
