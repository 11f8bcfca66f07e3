"""NeMo Gym: its resources server over HTTP, as its agents call it."""

import json
import sys
from unittest.mock import MagicMock

from fastapi.testclient import TestClient
from kernelwright_env.nemo_gym_server import KernelResourcesServer, rows_for_nemo_gym
from nemo_gym.base_resources_server import BaseResourcesServerConfig
from nemo_gym.server_utils import ServerClient

REPLIES = json.loads(sys.argv[1])
row = next(rows_for_nemo_gym())
config = BaseResourcesServerConfig(host="127.0.0.1", port=0, entrypoint="app.py", name="kernelwright")
server = KernelResourcesServer(config=config, server_client=MagicMock(spec=ServerClient))
client = TestClient(server.setup_webserver(), raise_server_exceptions=False)
found = {}
for name, reply in REPLIES.items():
    response = {
        "id": "r", "created_at": 0, "model": "m", "object": "response", "parallel_tool_calls": False,
        "tool_choice": "none", "tools": [],
        "output": [
            {
                "id": "m", "type": "message", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": reply, "annotations": []}],
            }
        ],
    }  # fmt: skip
    answer = client.post("/verify", json={**row, "response": response})
    found[name] = {"status": answer.status_code, "body": answer.json() if answer.status_code == 200 else None}
print(json.dumps(found))
