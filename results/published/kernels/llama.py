"""A small Llama of Transformers, in which `kernelwright export --inside` times kernels; its layers have their sizes."""

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

batch_size = 8
tokens = 128
features = 256
hidden_features = 704
heads = 4
layers = 4
vocabulary = 256


class Model(nn.Module):
    def __init__(self, features: int, hidden_features: int, heads: int, layers: int, vocabulary: int):
        super().__init__()
        config = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=features,
            intermediate_size=hidden_features,
            num_attention_heads=heads,
            num_hidden_layers=layers,
            rms_norm_eps=1e-5,
            use_cache=False,
        )
        self.llama = LlamaForCausalLM(config)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.llama(input_ids=tokens).logits


def get_inputs():
    return [torch.randint(vocabulary, (batch_size, tokens))]


def get_init_inputs():
    return [features, hidden_features, heads, layers, vocabulary]
