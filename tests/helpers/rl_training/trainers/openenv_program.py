"""OpenEnv: its server over the environment, and its own client over WebSocket."""

import json
import socket
import sys
import threading
import time
from pathlib import Path

import uvicorn
from openenv.cli._validation import validate_multi_mode_deployment
from openenv.core.generic_client import GenericEnvClient

REPLIES = json.loads(sys.argv[1])
sys.path.insert(0, str(Path.cwd()))
from server.app import app  # noqa: E402

listening = socket.create_server(("127.0.0.1", 0))
server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
while not server.started:
    time.sleep(0.01)
found: dict[str, object] = {"problems": validate_multi_mode_deployment(Path.cwd())[1]}
with GenericEnvClient(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}").sync() as client:
    for name, reply in REPLIES.items():
        begun = client.reset(task="builtin:level1/relu")
        steps = []
        while True:
            result = client.step({"reply": reply})
            steps.append(
                {"reward": result.reward, "done": result.done, "no_verdict": result.observation["no_verdict"]}
            )
            if result.done:
                break
        found[name] = {"prompt": begun.observation["messages"][-1]["content"], "steps": steps}
    found["returns"] = client.state()["returns"]
    found["by_seed"] = client.reset(seed=1).observation["task"]
server.should_exit = True
print(json.dumps(found))
