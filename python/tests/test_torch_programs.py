"""Small models written for PyTorch train here and there from the same weights: the same code, and the same losses over some steps."""

import numpy as np
import pytest

import netcl as nc
import netcl.nn.functional as F
from netcl import nn

torch = pytest.importorskip("torch")

STEPS = 5


def resnet(lib, nn, F):
    class Block(nn.Module):
        def __init__(self, inner, outer, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(inner, outer, kernel_size=3, stride=stride, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(outer)
            self.relu = nn.ReLU(inplace=True)
            self.conv2 = nn.Conv2d(outer, outer, kernel_size=3, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(outer)
            self.downsample = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)) if stride > 1 else None

        def forward(self, x):
            identity = x
            out = self.relu(self.bn1(self.conv1(x)))
            out = self.bn2(self.conv2(out))
            if self.downsample is not None:
                identity = self.downsample(x)
            out += identity
            return self.relu(out)

    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(True), nn.MaxPool2d(3, 2, 1), Block(4, 4, 1), Block(4, 8, 2), nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(8, 3))
    return model, lambda images, labels: F.cross_entropy(model(images), labels)


def generator(lib, nn, F):
    model = nn.Sequential(
        nn.ConvTranspose2d(6, 8, 4, 1, 0, bias=False), nn.BatchNorm2d(8), nn.ReLU(True), nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False), nn.Tanh(),
        nn.Conv2d(1, 4, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(4, 1, 4, 1, 0, bias=False), nn.Sigmoid(),
    )  # fmt: skip
    loss = nn.BCELoss()
    return model, lambda images, labels: loss(model(images.reshape(4, -1)[:, :6, None, None]).view(-1), (labels > 0).float())


def autoencoder(lib, nn, F):
    class VAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc21, self.fc22, self.fc3, self.fc4 = nn.Linear(64, 16), nn.Linear(16, 3), nn.Linear(16, 3), nn.Linear(3, 16), nn.Linear(16, 64)

        def forward(self, x):
            h = F.relu(self.fc1(x.view(-1, 64)))
            mu, logvar = self.fc21(h), self.fc22(h)
            z = mu + (0.5 * logvar).exp() * 0.3
            return self.fc4(F.relu(self.fc3(z))).sigmoid(), mu, logvar

    model = VAE()

    def loss(images, labels):
        images = images.sigmoid()
        made, mu, logvar = model(images)
        return F.binary_cross_entropy(made, images.view(-1, 64), reduction="sum") - 0.5 * (1 + logvar - mu**2 - logvar.exp()).sum()

    return model, loss


def language_model(kind):
    def make(lib, nn, F):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.drop = nn.Dropout(0.0)
                self.encoder = nn.Embedding(11, 8)
                self.rnn = getattr(nn, kind)(8, 8, 2)
                self.decoder = nn.Linear(8, 11)
                self.decoder.weight = self.encoder.weight

            def forward(self, ids, hidden=None):
                out, hidden = self.rnn(self.drop(self.encoder(ids)), hidden)
                return F.log_softmax(self.decoder(out).view(-1, 11), dim=1), hidden

        model = Model()

        def loss(images, labels):
            ids = (images.view(4, 64)[:, :6] * 3).long() if lib is torch else (images.view(4, 64)[:, :6] * 3).to("int32")
            ids = (ids + 22) % 11
            made, hidden = model(ids[:, :-1])
            made, _ = model(ids[:, :-1], tuple(h.detach() for h in hidden) if kind == "LSTM" else hidden.detach())
            return F.nll_loss(made, ids[:, 1:].reshape(-1))

        return model, loss

    return make


def transformer(lib, nn, F):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Linear(8, 8)
            self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True, activation="gelu"), 2, enable_nested_tensor=False)
            self.head = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 3))

        def forward(self, x):
            x = self.tokens(x)
            x = self.layers(x, mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]), is_causal=True)
            return self.head(x.mean(dim=1))

    model = Model()
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    return model, lambda images, labels: loss(model(images.squeeze(1)), labels)


PROGRAMS = {"resnet": resnet, "generator": generator, "autoencoder": autoencoder, "LSTM": language_model("LSTM"), "GRU": language_model("GRU"), "RNN": language_model("RNN"), "transformer": transformer}


@pytest.mark.parametrize("name", PROGRAMS)
def test_losses_are_those_of_pytorch(name):
    start, found = None, []
    for lib, modules, functions in ((torch, torch.nn, torch.nn.functional), (nc, nn, F)):
        torch.manual_seed(0)
        model, loss = PROGRAMS[name](lib, modules, functions)
        start = {k: v.clone() for k, v in model.state_dict().items()} if start is None else start
        model.load_state_dict(start)
        optimizer = lib.optim.SGD(model.parameters(), lr=0.05)
        random, losses = np.random.default_rng(0), []
        for _ in range(STEPS):
            images = lib.tensor(random.normal(size=(4, 1, 8, 8)).astype(np.float32))
            ids = random.integers(0, 3, 4)
            labels = lib.tensor(ids if lib is torch else ids.astype(np.int32))
            optimizer.zero_grad()
            value = loss(images, labels)
            value.backward()
            modules.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(value.item())
        found.append((losses, {k: v.float().numpy() for k, v in model.eval().state_dict().items()}))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-4)
    for key, value in found[0][1].items():
        np.testing.assert_allclose(found[1][1][key], value, rtol=1e-3, atol=1e-4, err_msg=key)
