"""References of many steps."""

from tests.helpers.builtin.proving import source

CELLS = (
    "self.take = nn.Linear(8, 32); self.hold = nn.Linear(8, 32, bias=False); "
    "self.up = nn.Linear(8, 32); self.over = nn.Linear(8, 32)"
)
_GATES = """a, b, c, d = gates.chunk(4, dim=-1)
            memory = torch.sigmoid(a) * memory + torch.sigmoid(b) * torch.tanh(c)
            state = torch.sigmoid(d) * torch.tanh(memory)"""
LSTM = f"""state = memory = x.new_zeros(x.shape[0], 8)
        states = []
        for i in range(6):
            gates = self.take(x[:, i]) + self.hold(state)
            {_GATES}
            states.append(state)
"""
STACKED = f"""{LSTM}        memory = torch.zeros_like(memory)
        for state_below in states:
            gates = self.up(state_below) + self.over(memory)
            {_GATES}
"""
# What forward does and with what, and the calls of F.linear that are left.
STEPS = {
    "of a tensor's second axis": (f"{LSTM}        return torch.stack(states, 1)", "torch.randn(5, 6, 8)", 7),
    "of what other steps find": (f"{STACKED}        return state, memory", "torch.randn(5, 6, 8)", 14),
    "of a tensor's first axis": (
        "return sum(torch.tanh(self.take(x[i])) * i for i in range(4))",
        "torch.randn(4, 5, 8)",
        1,
    ),
    "in another order": (
        "return sum(torch.tanh(self.take(x[i])) * i for i in (3, 1, 0, 2, 4))",
        "torch.randn(5, 5, 8)",
        1,
    ),
    "some of them returned": (
        "y = [self.take(x[i]) for i in range(4)]\n        return y[0], y[1].exp() + y[2] * y[3]",
        "torch.randn(4, 5, 8)",
        4,
    ),
    "read by other products": (
        "y = [self.take(x[i]) for i in range(4)]\n        return torch.tanh(y[0].T @ y[1]) + y[3].T @ y[2]",
        "torch.randn(4, 5, 8)",
        1,
    ),
    "read in another shape": (
        "y = [self.take(x[:, i]).flatten() for i in range(4)]\n"
        "        return y[0].exp() * y[1] - y[2] * y[3].tanh(), y[2].view(-1, 8).sum(-1)",
        "torch.randn(5, 4, 8)",
        4,
    ),
    "too few": ("return self.take(x[0]).exp() + self.take(x[1]).tanh()", "torch.randn(2, 5, 8)", 2),
    "each from the one before": (
        "for i in range(4):\n            x = self.square(x) * i\n        return x",
        "torch.randn(5, 8)",
        4,
    ),
}
STEPS_TEXTS = {
    name: source(forward, inputs, init=f"{CELLS}; self.square = nn.Linear(8, 8)")
    for name, (forward, inputs, _) in STEPS.items()
}
