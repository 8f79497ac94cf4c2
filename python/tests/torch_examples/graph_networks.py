"""A graph convolution (Kipf and Welling 2017) and graph attention (Veličković et al. 2018) for nodes of two communities."""

import numpy as np

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Adam


class Convolution(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.mix = nn.Parameter(torch.Tensor(inner, outer))
        self.shift = nn.Parameter(torch.Tensor(outer))
        nn.init.kaiming_uniform_(self.mix, mode="fan_out")
        nn.init.zeros_(self.shift)

    def forward(self, x, edges):
        return torch.mm(edges, torch.mm(x, self.mix)) + self.shift


class ConvolutionNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.near, self.far, self.drop = Convolution(6, 8), Convolution(8, 2), nn.Dropout(0.0)

    def forward(self, x, edges):
        return F.log_softmax(self.far(self.drop(F.relu(self.near(x, edges))), edges), dim=1)


class Attention(nn.Module):
    def __init__(self, inner, width, heads, join):
        super().__init__()
        self.width, self.heads, self.join = width, heads, join
        self.mix = nn.Parameter(torch.empty(size=(inner, heads * width)))
        self.pair = nn.Parameter(torch.empty(size=(heads, 2 * width, 1)))
        self.leaky = nn.LeakyReLU(0.2)
        nn.init.xavier_normal_(self.mix)
        nn.init.xavier_normal_(self.pair)

    def forward(self, x, edges):
        n = x.shape[0]
        mixed = F.dropout(torch.mm(x, self.mix), 0.0, training=self.training).view(n, self.heads, self.width).permute(1, 0, 2)
        scores = torch.matmul(mixed, self.pair[:, : self.width, :]) + torch.matmul(mixed, self.pair[:, self.width :, :]).mT
        scores = self.leaky(scores)
        scores = torch.where(edges > 0, scores, -9e16 * torch.ones_like(scores))
        made = torch.matmul(F.dropout(F.softmax(scores, dim=-1), 0.0, training=self.training), mixed)
        return made.permute(1, 0, 2).contiguous().view(n, self.heads * self.width) if self.join else made.mean(dim=0)


class AttentionNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.near, self.far, self.elu = Attention(6, 4, 2, True), Attention(8, 2, 1, False), nn.ELU()

    def forward(self, x, edges):
        return F.log_softmax(self.far(self.elu(self.near(x, edges)), edges), dim=1)


def community(nodes):
    random = np.random.default_rng(8)
    kinds = np.arange(nodes) % 2
    likely = np.where(kinds[:, None] == kinds, 0.5, 0.05)
    edges = torch.zeros(nodes, nodes)
    for i, j in np.argwhere(random.random((nodes, nodes)) < likely).tolist():
        edges[i, j] = edges[j, i] = 1.0
    edges += torch.eye(nodes)
    edges = torch.clamp(edges, max=1.0)
    scale = torch.pow(torch.sum(edges, dim=1), -0.5)
    scale[torch.isinf(scale)] = 0.0
    x = torch.FloatTensor(random.normal(size=(nodes, 6)).astype(np.float32))
    return x / x.abs().sum(dim=1, keepdim=True), torch.LongTensor(kinds.tolist()), edges, torch.diag(scale) @ edges @ torch.diag(scale)


def models():
    return {"convolution": ConvolutionNet(), "attention": AttentionNet()}


def main(convolution, attention):
    x, kinds, edges, weighted = community(20)
    order = torch.randperm(len(kinds))
    known, rest = order[:12], order[12:]
    losses, measure = [], nn.NLLLoss()
    for net, graph in ((convolution, weighted), (attention, edges)):
        optimizer = Adam(net.parameters(), lr=0.01, weight_decay=5e-4)
        for _ in range(12):
            net.train()
            optimizer.zero_grad()
            loss = measure(net(x, graph)[known], kinds[known])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        net.eval()
        with torch.no_grad():
            found = net(x, graph)[rest]
        losses += [measure(found, kinds[rest]).item(), (found.argmax(dim=1) == kinds[rest]).sum().item() / len(kinds[rest])]
    return losses
