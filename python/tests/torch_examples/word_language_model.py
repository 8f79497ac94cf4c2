"""Language models of words: recurrent layers whose state passes from batch to batch, and a model derived from ``nn.Transformer``."""

import math

import numpy as np

import torch
import torch.nn as nn
import torch.nn.functional as F

WORDS, STEPS, ROWS = 13, 5, 4


class Recurrent(nn.Module):
    def __init__(self, kind, width=8, layers=2, tied=False):
        super().__init__()
        self.kind, self.width, self.layers = kind, width, layers
        self.drop, self.table = nn.Dropout(0.0), nn.Embedding(WORDS, width)
        options = {} if kind in ("LSTM", "GRU") else {"nonlinearity": kind.split("_")[1].lower()}
        self.rnn = getattr(nn, kind.split("_")[0])(width, width, layers, dropout=0.0, **options)
        self.head = nn.Linear(width, WORDS)
        if tied:
            self.head.weight = self.table.weight
        nn.init.uniform_(self.table.weight, -0.1, 0.1)
        nn.init.zeros_(self.head.bias)

    def begin(self, rows):
        like = next(self.parameters())
        made = [like.new_zeros(self.layers, rows, self.width) for _ in range(2)]
        return tuple(made) if self.kind == "LSTM" else made[0]

    def forward(self, words, state):
        read, state = self.rnn(self.drop(self.table(words)), state)
        return F.log_softmax(self.head(self.drop(read)).view(-1, WORDS), dim=1), state


class Places(nn.Module):
    def __init__(self, width, longest=50):
        super().__init__()
        at = torch.arange(0, longest, dtype=torch.float).unsqueeze(1)
        speed = torch.exp(torch.arange(0, width, 2).float() * (-math.log(10000.0) / width))
        waves = torch.zeros(longest, width)
        waves[:, 0::2], waves[:, 1::2] = torch.sin(at * speed), torch.cos(at * speed)
        self.register_buffer("waves", waves.unsqueeze(0).transpose(0, 1))

    def forward(self, x):
        return x + self.waves[: x.size(0), :]


class Attending(nn.Transformer):
    def __init__(self, width=8):
        super().__init__(d_model=width, nhead=2, dim_feedforward=16, num_encoder_layers=2, num_decoder_layers=1, dropout=0.0)
        self.causal, self.width = None, width
        self.places, self.table = Places(width), nn.Embedding(WORDS, width)
        self.decoder = nn.Linear(width, WORDS)

    def forward(self, words, causal=True):
        if causal and (self.causal is None or self.causal.size(0) != len(words)):
            self.causal = torch.log(torch.tril(torch.ones(len(words), len(words)))).to(words.device)
        x = self.places(self.table(words) * math.sqrt(self.width))
        return F.log_softmax(self.decoder(self.encoder(x, mask=self.causal if causal else None)), dim=-1)


def models():
    return {**{kind.lower(): Recurrent(kind, tied=kind == "GRU") for kind in ("LSTM", "GRU", "RNN_TANH", "RNN_RELU")}, "attending": Attending()}


def cut_off(state):
    return state.detach() if isinstance(state, torch.Tensor) else tuple(cut_off(part) for part in state)


def main(**nets):
    words = torch.tensor(np.random.default_rng(5).integers(0, WORDS, 90).tolist()).type(torch.int64)
    words = words.narrow(0, 0, words.size(0) // ROWS * ROWS).view(ROWS, -1).t().contiguous()
    losses, measure = [], nn.NLLLoss()
    for net in nets.values():
        rate, recurrent = 2.0, isinstance(net, Recurrent)
        if recurrent:
            net.rnn.flatten_parameters()
        for _ in range(2):
            net.train()
            state = net.begin(ROWS) if recurrent else None
            for i in range(0, words.size(0) - 1, STEPS):
                n = min(STEPS, len(words) - 1 - i)
                given, wanted = words[i : i + n], words[i + 1 : i + 1 + n].view(-1)
                net.zero_grad()
                if recurrent:
                    logs, state = net(given, cut_off(state))
                else:
                    logs = net(given).view(-1, WORDS)
                loss = measure(logs, wanted)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(net.parameters(), 0.25)
                for p in net.parameters():
                    if p.grad is not None:
                        p.data.add_(p.grad, alpha=-rate)
                losses.append(loss.item())
            rate /= 4.0
    net.eval()
    text = torch.randint(WORDS, (1, 1), dtype=torch.long)
    with torch.no_grad():
        for _ in range(4):
            weights = net(text, False)[-1].squeeze().div(1.0).exp().cpu()
            chosen = torch.multinomial(weights, 1)[0]
            text = torch.cat([text, torch.Tensor([[chosen]]).long()], 0)
    return losses + [float(word) for word in text.view(-1).tolist()]
