"""SkyRL: the environment, made by skyrl_gym's own registry."""

import json
import sys

import skyrl_gym
from kernelwright_env.skyrl_environment import rows_for_skyrl
from skyrl_gym.envs import register

REPLIES = json.loads(sys.argv[1])
register(id="kernelwright", entry_point="kernelwright_env.skyrl_environment:SkyRLEnvironment")
row = next(rows_for_skyrl())
found = {}
for name, reply in REPLIES.items():
    env = skyrl_gym.make(row["env_class"], env_config={}, extras=row)
    prompt, _ = env.init(row["prompt"])
    steps, error = [], None
    try:
        while not steps or not steps[-1]["done"]:
            steps.append(env.step(reply))
    except Exception as raised:  # noqa: BLE001 - the test says which it is
        error = type(raised).__name__
    env.close()
    found[name] = {"steps": steps, "error": error, "metrics": env.get_metrics(), "prompt": prompt}
print(json.dumps(found))
