"""Check dropout: masks repeat, differ between draws, and are those that autograd would use."""

import copy

import numpy as np
import pytest
import torch
from nets import plain_gradient, refuse
from network_models import Encoder, words
from torch import nn
from torch.nn import functional as F

import fedpage as fp
from fedpage.core.random import RoundDraws
from fedpage.problems.torch.dropout import KeyedDropout, draw_mask, layer_keys, use_keys


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Dropout(0.4), nn.Linear(20, 3)).double()


def clients():
    torch.manual_seed(2)
    return [(torch.randn(n, 6).double(), torch.arange(n) % 3) for n in (9, 5, 12)]


def problem(model=None, **options):
    return fp.TorchProblem(model or network(), F.cross_entropy, clients(), **options)


def test_a_gradient_is_that_of_the_masked_network():
    own = problem()
    oracle = own.oracle(np.array([0, 2]), RoundDraws(seed=0, round=3))
    batch = oracle.batch(None)
    found = oracle.grad(own.x0, batch)
    np.testing.assert_array_equal(oracle.grad(own.x0, batch), found)  # one batch, one mask
    assert np.abs(oracle.grad(own.x0, oracle.batch(None)) - found).max() > 1e-3
    keyed = nn.Sequential(nn.Dropout(0.4))
    use_keys(keyed)
    assert isinstance(keyed[0], KeyedDropout)
    masks = []
    for place, client in enumerate((0, 2)):
        X, y = clients()[client]
        keyed[0].dropout_key = layer_keys(batch.keys[place], 1)[0]
        masks.append(keyed(torch.ones(len(X), 20).double()))
        linear = network()
        hidden = torch.tanh(linear[0](X)) * masks[-1]
        expected = plain_gradient(F.cross_entropy(linear[3](hidden), y), linear)
        np.testing.assert_allclose(found[place], expected, rtol=0, atol=1e-12)
        assert {0.0, 1 / 0.6} == set(masks[-1].unique().tolist())
    assert not torch.equal(masks[0], masks[1][:9])


def test_nothing_is_dropped_in_evaluations():
    own, plain = problem(), network().eval()
    losses = [float(F.cross_entropy(plain(X), y).detach()) for X, y in clients()]
    assert own.loss(own.x0) == pytest.approx(np.mean(losses), abs=1e-12)
    assert isinstance(own.to_module(own.x0)[2], nn.Dropout)


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_transformer_encoder_with_default_dropout_trains(batch_first):
    runs = []
    for options in ({}, {"deterministic": True}):
        torch.manual_seed(1)
        model, data = Encoder(batch_first), [words(0), words(1)]
        own = fp.TorchProblem(model, F.cross_entropy, data, dtype="float64", **options)
        assert own.mode == ("sequential" if options else "batched")
        runs.append(fp.simulate(own, fp.FedAvg(S=2, K=3, eta_l=0.1, b=8), rounds=4, seed=0))
    np.testing.assert_allclose(runs[0].x, runs[1].x, rtol=0, atol=1e-11)
    assert runs[0].last("loss") < runs[0].rows[0]["loss"]


def test_attention_without_dropped_weights_is_that_of_torch():
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True).double()
    keyed = nn.Sequential(copy.deepcopy(plain))
    use_keys(keyed)
    keyed[0].keyed.p = 1e-300  # the path with keys, in which nothing is dropped
    keyed[0].keyed.dropout_key = torch.tensor(5)
    x = torch.randn(3, 4, 8).double()
    hidden = torch.zeros(3, 4, dtype=torch.bool)
    hidden[:, 3] = True
    causal = torch.triu(torch.ones(4, 4, dtype=torch.bool), 1)
    for masks in ({}, {"key_padding_mask": hidden}, {"attn_mask": causal}):
        expected = plain.eval()(x, x, x, **masks)
        for a, b in zip(keyed[0](x, x, x, **masks), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_masks_have_the_stated_probability_and_are_independent_between_calls():
    keys = torch.arange(64)
    masks = torch.stack([draw_mask(key, torch.Size([50, 40]), 0.3) for key in keys]).double()
    assert float(masks.mean()) == pytest.approx(0.7, abs=0.004)
    flat = masks.flatten(1) - 0.7
    products = flat @ flat.T / flat.shape[1]
    assert float((products - torch.diag(products.diag())).abs().max()) < 0.025
    twice, channels = (
        nn.Sequential(nn.Identity(), nn.Dropout(0.5)),
        nn.Sequential(nn.Dropout2d(0.5)),
    )
    for model, layer in ((twice, 1), (channels, 0)):
        use_keys(model)
        model[layer].dropout_key = torch.tensor(3)
    ones = torch.ones(30, 4)
    assert torch.equal(twice(ones), twice(ones))
    assert not torch.equal(twice[1](ones), twice[1](ones))
    image = channels(torch.ones(6, 5, 3, 3))
    assert bool((image == image[:, :, :1, :1]).all())
    assert {0.0, 2.0} == set(image.unique().tolist())


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (network(), {"compile": True}, "compile=True is not possible with dropout"),
        (nn.Sequential(nn.Linear(6, 3), nn.AlphaDropout(0.1)), {}, "AlphaDropout"),
        (nn.LSTM(6, 3, 2, dropout=0.1), {}, "put nn.Dropout between"),
        (nn.MultiheadAttention(6, 1, dropout=0.1, kdim=3), {}, "leave out kdim"),
    ],
)
def test_other_random_layers_are_refused(model, options, message):
    refuse(message, model, F.cross_entropy, clients(), **options)
