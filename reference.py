
import dataclasses
import random
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn



class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x, s):
        return x.exp() * s

def get_inputs():
    return [torch.randn(64, 8), torch.ones(8)]

def get_init_inputs():
    return []
