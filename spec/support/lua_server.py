"""A client for a language server for Lua: starts it in a folder and speaks its protocol over pipes."""
import json
import os
import subprocess
import threading
import time

# As docs/editors.md has it.
CONFIG = {"runtime": {"version": "LuaJIT"}, "strict": {"arrayIndex": False}}


class Server:
    def __init__(self, command, folder):
        for name in (".luarc.json", ".emmyrc.json"):
            with open(os.path.join(folder, name), "w") as f:
                json.dump(CONFIG, f)
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, cwd=folder)
        self.answers, self.published, self.number = {}, {}, 0
        self.uri = "file://" + folder
        threading.Thread(target=self._read, daemon=True).start()
        self.ask("initialize", {"processId": os.getpid(), "rootUri": self.uri,
                                "workspaceFolders": [{"uri": self.uri, "name": "work"}],
                                "capabilities": {"workspace": {"configuration": True},
                                                 "textDocument": {"completion": {}, "hover": {}}}})
        self.send({"method": "initialized", "params": {}})

    def end(self):
        self.process.kill()
        self.process.wait()  # it writes into its folder until then

    def send(self, message):
        text = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
        self.process.stdin.flush()

    def _message(self):
        length = 0
        for line in iter(self.process.stdout.readline, b""):
            if line == b"\r\n":
                return json.loads(self.process.stdout.read(length))
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])

    def _read(self):
        for message in iter(self._message, None):
            if "method" in message and "id" in message:  # the server asks
                result = [CONFIG for _ in message["params"].get("items", [])] \
                    if message["method"] == "workspace/configuration" else None
                self.send({"id": message["id"], "result": result})
            elif message.get("method") == "textDocument/publishDiagnostics":
                self.published[message["params"]["uri"]] = message["params"]["diagnostics"]
            elif "id" in message:
                self.answers[message["id"]] = message.get("result")

    def ask(self, method, params, patience=60):
        """The answer's result, or None when none comes in `patience` seconds."""
        self.number += 1
        mine = self.number
        self.send({"id": mine, "method": method, "params": params})
        end = time.time() + patience
        while mine not in self.answers and time.time() < end:
            time.sleep(0.02)
        return self.answers.get(mine)

    def opened(self, name, text):
        """Opens a file of the folder and returns its URI."""
        path = "%s/%s" % (self.uri, name)
        self.send({"method": "textDocument/didOpen",
                   "params": {"textDocument": {"uri": path, "languageId": "lua", "version": 1, "text": text}}})
        return path

    def complaints(self, path, patience=60):
        """The diagnostics of a file; None when the server does not answer."""
        found = self.ask("textDocument/diagnostic", {"textDocument": {"uri": path}}, patience)
        return found and found.get("items", []) + self.published.get(path, [])
