-- lua/accelerate/jupyter: the kernel for Jupyter, driven over ZeroMQ as a notebook drives it.
-- Jupyter's own client drives it in spec/support/jupyter/check.py.
local core = require "accelerate.core"
local ffi = require "ffi"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local machines = require "spec.support.machines"
local processes = require "spec.support.processes"
local text = require "accelerate.jupyter.text"
local wire = require "accelerate.jupyter.wire"
local zmq = require "accelerate.jupyter.zmq"

-- ---- without a library

describe("messages of the Jupyter protocol", function()
  local function request(key)
    local parts = { '{"msg_type": "kernel_info_request", "session": "s"}', "{}", "{}", "{}" }
    return { "client", "<IDS|MSG>", core._hmac_sha256(key, unpack(parts)), unpack(parts) }
  end

  it("are read when they are signed with the key, once", function()
    local connection = wire.new("secret", "kernel")
    local message = assert(wire.read(connection, request("secret")))
    assert.same({ "kernel_info_request", { "client" }, "s" }, { message.kind, message.ids, message.session })
    assert.same({ nil, "its signature has come before" }, { wire.read(connection, request("secret")) })
    assert.same({ nil, "its signature is not the one of the connection's key" },
      { wire.read(connection, request("another")) })
    local changed = request("secret")
    changed[7] = '{"code": "os.exit()"}'
    assert.is_nil((wire.read(wire.new("secret", "kernel"), changed)))
  end)

  it("are refused with the reason when they are not whole", function()
    local connection = wire.new("", "kernel")
    for _, case in ipairs { { { "x" }, "it has 1 frames, without the 6 from <IDS|MSG> on" },
      { { "<IDS|MSG>", "", "[]x", "{}", "{}", "{}" }, "its header is no object: json: text after the value" },
      { { "<IDS|MSG>", "", "{}", "{}", "{}", "{}" }, "its header has no msg_type" },
      { { "<IDS|MSG>", "", "{}", "{}", "{}", "1" }, "its content is no object: another value" } } do
      assert.same({ nil, case[2] }, { wire.read(connection, case[1]) })
    end
  end)

  it("are written with a signature and the request's header", function()
    local connection = wire.new("secret", "kernel")
    local message = wire.read(connection, request("secret"))
    local frames = wire.write(connection, { "client" }, "status", { list = json.list(), text = "a\255" },
      message)
    assert.same({ "client", "<IDS|MSG>" }, { frames[1], frames[2] })
    assert.equal(core._hmac_sha256("secret", unpack(frames, 4, 7)), frames[3])
    assert.equal('{"msg_type": "kernel_info_request", "session": "s"}', frames[5])
    assert.equal('{"list": [], "text": "a\239\191\189"}', frames[7])
  end)

  it("hold UTF-8 alone, and count characters", function()
    for given, expected in pairs { ["a\195\169"] = "a\195\169", ["\195"] = "?",
      ["\255\195\169\128"] = "?\195\169?",
      ["\224\128\128"] = "?", ["\237\160\128"] = "?", ["\240\159\152\128"] = "\240\159\152\128",
      ["\192\128"] = "?" } do
      assert.equal((expected:gsub("?", "\239\191\189")), (text.utf8(given)))
    end
    assert.equal(3, text.bytes_before("\195\169xy", 2))
    assert.equal(3, text.characters("\195\169xy"))
    assert.equal(2, text.unfinished("a\226\130"))
    assert.equal(0, text.unfinished("a\226\130\172"))
  end)
end)

describe("accel-run kernel", function()
  it("installs a kernel for a user, below a prefix and with a name", function()
    host.in_folder(function(folder)
      local status, out = host.run({ "kernel", "install", "--user" },
        { env = { JUPYTER_DATA_DIR = folder .. "/data" } })
      assert.equal(0, status)
      assert.matches("the kernel is in " .. folder:gsub("%p", "%%%0") .. "/data/kernels/accel\n", out)
      assert.equal(0,
        (host.run { "kernel", "install", "--prefix", folder, "--name", "lua", "--display_name", "Mine" }))
      local file = assert(io.open(folder .. "/share/jupyter/kernels/lua/kernel.json"))
      local spec = json.decode(file:read("*a"))
      file:close()
      assert.same({ "kernel", "start", "-f", "{connection_file}" }, { unpack(spec.argv, 2) })
      assert.same({ "Mine", "lua", "message" }, { spec.display_name, spec.language, spec.interrupt_mode })
    end)
  end)

  it("says what is wrong", function()
    for _, case in ipairs { { { "kernel", "instal" }, 2,
      "'instal' is no action of kernel; there are install and start" },
      { { "kernel", "install", "--name", "a/b" }, 2, "%-%-name: expected letters, digits" },
      { { "kernel", "install", "--user", "--prefix", "x" }, 2, "are two places; give one" },
      { { "kernel", "start" }, 2, "start needs Jupyter's connection file" } } do
      local status, _, err = host.run(case[1])
      assert.equal(case[2], status)
      assert.matches(case[3], err)
    end
  end)
end)

describe("a kernel without libzmq", function()
  it("names the package", function()
    local _, out = host.run { "-e", "require('ffi').load = function() error('none') end " ..
      "print(require('accelerate.jupyter.zmq').open())" }
    assert.matches("^nil\tlibzmq cannot be loaded %(Debian's and Ubuntu's package is libzmq5, pip's is " ..
      "pyzmq%): .*none",
      out)
  end)

  -- A library that a process has mapped; what is opened by its name alone is not there.
  it("takes the one that Jupyter's process has loaded", function()
    host.in_folder(function(inside)
      local _, out, err = host.run { "-e", ([[
        local ffi, folder = require "ffi", "%s"
        ffi.cdef "int setenv(const char *, const char *, int); int getpid(void);"
        local libc = io.open("/proc/self/maps"):read("*a"):match("(/%%S*libm%%.so%%S*)")
        local path = folder .. "/libzmq-915944f4.so.5.2.5"
        os.execute(("cp '%%s' '%%s'"):format(libc, path))
        held = ffi.load(path)
        ffi.C.setenv("JPY_PARENT_PID", tostring(ffi.C.getpid()), 1)
        local load = ffi.load
        ffi.load = function(name) return name:find "/" and load(name) or error "none" end
        assert(require("accelerate.jupyter.zmq").open())
        print "opened"]]):format(inside) }
      assert.equal("opened\n", out, err)
    end)
  end)

  it("says what the loader says of one that cannot be loaded", function()
    host.in_folder(function(inside)
      os.execute(("echo nonsense >'%s/libzmq.so.5'"):format(inside))
      local _, out = host.run({ "-e",
        "io.popen = function() end print(require('accelerate.jupyter.zmq').open())" },
        { env = { LD_LIBRARY_PATH = inside }, unset = { "JPY_PARENT_PID" } })
      assert.matches("libzmq%.so%.5: file too short", out)
    end)
  end)
end)

-- ---- a kernel that runs

local opened, missing = zmq.open()

describe("a Jupyter kernel", function()
  local function with_zmq(name, body)
    it(name, function()
      if not opened then return pending(missing) end
      body()
    end)
  end

  local KEY = "a key of the spec"
  local kernel, sockets, connection, folder

  -- The next message of a socket: its kind, content and the request's number.
  local function receive(name)
    for _ = 1, 100 * host.stretch() do
      local frames = zmq.receive(sockets[name])
      if frames then
        local message = assert(wire.read(connection, frames))
        return message.kind, message.content, json.decode(frames[#message.ids + 4]).msg_id
      end
      zmq.poll({ sockets[name] }, 100)
    end
    error("no message on " .. name)
  end

  local function send(name, kind, content)
    local frames = wire.write(connection, {}, kind, content)
    zmq.send(sockets[name], frames)
    return json.decode(frames[3]).msg_id
  end

  -- What a request's reply says, and what was broadcast meanwhile: list of { kind, content }.
  local function ask(kind, content, name)
    local id = send(name or "shell", kind, content)
    local _, reply, of = receive(name or "shell")
    assert.equal(id, of)
    local list = {}
    repeat
      local what, value, whose = receive("iopub")
      if whose == id then list[#list + 1] = { what, value } end
    until whose == id and what == "status" and value.execution_state == "idle"
    return reply, list
  end

  local function run(code, more)
    local content = { code = code, silent = false, store_history = true }
    for key, value in pairs(more or {}) do content[key] = value end
    return ask("execute_request", content)
  end

  local function of(list, kind)
    for _, entry in ipairs(list) do
      if entry[1] == kind then return entry[2] end
    end
  end

  local function start()
    folder = os.tmpname()
    os.remove(folder)
    os.execute(("mkdir -p '%s'"):format(folder))
    local info = { transport = "tcp", ip = "127.0.0.1", key = KEY, signature_scheme = "hmac-sha256" }
    for _, name in ipairs { "shell", "control", "stdin", "iopub", "hb" } do
      info[name .. "_port"] = machines.free_port()
    end
    local file = assert(io.open(folder .. "/connection.json", "w"))
    file:write(json.encode(info))
    file:close()
    kernel = processes.start({ "kernel", "start", "-f", folder .. "/connection.json" },
      { env = { ACCELERATE_HISTORY = folder .. "/history" } })
    connection = wire.new(KEY, "client")
    sockets = { shell = zmq.socket(zmq.DEALER), control = zmq.socket(zmq.DEALER), iopub = zmq.socket(zmq.SUB),
      hb = zmq.socket(zmq.REQ), stdin = zmq.socket(zmq.DEALER) }
    for _, name in ipairs { "shell", "stdin" } do zmq.name(sockets[name], "client") end
    for name, socket in pairs(sockets) do
      zmq.connect(socket, ("tcp://127.0.0.1:%d"):format(info[name .. "_port"]))
    end
    local seen = processes.wait_until(20 * host.stretch(), function() -- until the subscription has arrived
      send("shell", "kernel_info_request", {})
      receive("shell")
      return zmq.poll({ sockets.iopub }, 50)[sockets.iopub]
    end)
    assert(seen, "the kernel did not start")
    ask("comm_info_request", {})
  end

  local function stop()
    if not kernel:ended() then kernel:destroy() end
    zmq.close(sockets)
    os.execute(("rm -rf '%s'"):format(folder))
    processes.clean()
  end

  local function in_kernel(body)
    start()
    local fine, message = xpcall(body, debug.traceback)
    stop()
    if not fine then error(message, 0) end
  end

  with_zmq("runs cells and says what they print and give", function()
    in_kernel(function()
      local reply, seen = run("local kept = 6; print('out'); io.stderr:write('err'); kept * 7")
      assert.same({ "ok", 1 }, { reply.status, reply.execution_count })
      assert.equal("42", of(seen, "execute_result").data["text/plain"])
      local streams = {}
      for _, entry in ipairs(seen) do
        if entry[1] == "stream" then streams[entry[2].name] = entry[2].text end
      end
      assert.same({ stdout = "out\n", stderr = "err" }, streams)
      assert.equal("6", of(select(2, run("kept")), "execute_result").data["text/plain"])
      reply, seen = run("error('no')")
      assert.same({ "error", "[3]:1: no" }, { reply.status, reply.evalue })
      assert.equal("[3]:1: no", of(seen, "error").evalue)
      reply = run("1", { user_expressions = { two = "1 + 1" }, store_history = false })
      assert.same({ 3, "2" }, { reply.execution_count, reply.user_expressions.two.data["text/plain"] })
      local data = of(select(2, run("display(tensor.ones(2, 2)); 5;")), "display_data").data
      assert.matches("<td>1</td><td>1</td>", data["text/html"])
      data = of(select(2, run("tensor.complex(tensor.ones(1), -tensor.ones(1))")), "execute_result").data
      assert.matches("<td>1%-1j</td>", data["text/html"])
      data = of(select(2, run("accelerate.utils.plot.curves({ 1, 2 })")), "execute_result").data
      assert.matches("^<svg .*</svg>", data["image/svg+xml"])
      assert.matches("^iVBORw0KGgo", data["image/png"])
      reply, seen = run("for _ in accelerate.utils.tqdm({ 1, 2 }, { desc = 'bar' }):iter() do end")
      assert.equal("ok", reply.status)
      local bar = ""
      for _, entry in ipairs(seen) do
        if entry[1] == "stream" and entry[2].name == "stderr" then bar = bar .. entry[2].text end
      end
      assert.matches("^\rbar:   0%%|.*\rbar: 100%%|.* 2/2 .*\n$", bar)
    end)
  end)

  with_zmq("completes, inspects, and knows what is complete", function()
    in_kernel(function()
      local reply = ask("complete_request", { code = "nn.Linea", cursor_pos = 8 })
      assert.same({ { "Linear" }, 3, 8 }, { reply.matches, reply.cursor_start, reply.cursor_end })
      reply = ask("inspect_request", { code = "nn.Linear", cursor_pos = 4, detail_level = 0 })
      assert.matches("^nn%.Linear%(in_features", reply.data["text/plain"])
      for code, state in pairs { ["x = 1"] = "complete", ["for i = 1, 2 do"] = "incomplete",
        ["x x"] = "invalid" } do
        assert.equal(state, ask("is_complete_request", { code = code }).status)
      end
      run("first = 1")
      reply = ask("history_request", { hist_access_type = "tail", n = 1, output = false, raw = true })
      assert.same({ { 2, 1, "first = 1" } }, reply.history)
    end)
  end)

  with_zmq("searches its history in time that any pattern and cell leaves short", function()
    in_kernel(function()
      run("second = 2")
      run("--" .. ("a"):rep(3000))
      run("--" .. ("b"):rep(2 ^ 20))
      local took = processes.stopwatch()
      local function search(pattern)
        return ask("history_request", { hist_access_type = "search", n = 10, output = false, raw = true,
          pattern = pattern })
      end
      assert.same({}, search(("*a"):rep(60) .. "b").history)
      assert.same({ { 2, 1, "second = 2" } }, search("sec?nd*").history)
      assert.equal(2, #search("*").history)
      assert.equal("error", search(("*a"):rep(1000)).status)
      assert(took() < 5)
    end)
  end)

  with_zmq("ends with the process that started it", function()
    local client = processes.start({ "1000" }, { path = "/bin/sleep" })
    ffi.C.setenv("JPY_PARENT_PID", tostring(client.pid), 1)
    start()
    ffi.C.setenv("JPY_PARENT_PID", "", 1)
    processes.sleep(0.1)
    local ended = kernel:ended()
    client:destroy()
    local gone = ended or processes.wait_until(10, function()
      ended = kernel:ended()
      return ended
    end)
    if not gone then kernel:destroy() end
    zmq.close(sockets)
    os.execute(("rm -rf '%s'"):format(folder))
    assert.equal(0, ended)
  end)

  with_zmq("stops a compiled loop when it is interrupted, by a message and by a signal, and beats meanwhile",
    function()
    in_kernel(function()
      for _, how in ipairs { "message", "signal" } do
        local id = send("shell", "execute_request",
          { code = "n = 0; print('on'); while true do n = n + 1 end" })
        repeat local kind = receive("iopub") until kind == "stream"
        processes.sleep(0.2)
        zmq.send(sockets.hb, { "beat" })
        assert(zmq.poll({ sockets.hb }, 5000)[sockets.hb], "no heartbeat")
        assert.same({ "beat" }, zmq.receive(sockets.hb))
        if how == "message" then
          send("control", "interrupt_request", {})
          assert.equal("interrupt_reply", (receive("control")))
        else
          kernel:signal(2)
        end
        local _, reply, whose = receive("shell")
        assert.same({ id, "error" }, { whose, reply.status })
        assert.matches("interrupted", reply.evalue)
        assert.equal("ok", run("n > 0").status)
      end
    end)
  end)

  with_zmq("asks for what io.read reads, also for none, and until an interrupt", function()
    in_kernel(function()
      local function answer(value)
        local kind, content = receive "stdin"
        assert.same({ "input_request", { prompt = "", password = false } }, { kind, content })
        send("stdin", "input_reply", { value = value })
      end
      send("shell", "execute_request",
        { code = "io.write 'name? '; name, n = io.read('*l', '*n'); name .. n * 2" })
      answer "Ada"
      answer " 21 "
      assert.equal("ok", (select(2, receive "shell")).status)
      local _, seen = run "name .. n"
      assert.equal('"Ada21"', of(seen, "execute_result").data["text/plain"])
      local reply = run("io.read()", { allow_stdin = false })
      assert.same({ "error", "[3]:1: io.read: this front end takes no input" },
        { reply.status, reply.evalue })
      send("shell", "execute_request", { code = "io.read()" })
      assert.equal("input_request", (receive "stdin"))
      send("control", "interrupt_request", {})
      reply = select(2, receive "shell")
      assert.equal("error", reply.status)
      assert.matches("interrupted", reply.evalue)
      send("stdin", "input_reply", { value = "late" })
      assert.equal("ok", run("1").status)
      assert.matches("expected [^\n]*, got x", run("io.read('x')").evalue)
    end)
  end)

  with_zmq("stops at a breakpoint, and looks at the functions of an error", function()
    in_kernel(function()
      local function answer(value)
        assert.equal("input_request", (receive "stdin"))
        send("stdin", "input_reply", { value = value })
      end
      send("shell", "execute_request",
        { code = "local function f(n) accelerate.breakpoint() return n end; kept = f(4)" })
      answer "n = n + 1"
      answer "c"
      assert.equal("ok", (select(2, receive "shell")).status)
      local _, seen = run "kept"
      assert.equal("5", of(seen, "execute_result").data["text/plain"])
      assert.equal("error", run("local function g(v) error('odd') end; g(7)").status)
      send("shell", "execute_request", { code = ":debug" })
      answer "found = v"
      answer "q"
      assert.equal("ok", (select(2, receive "shell")).status)
      _, seen = run "found"
      assert.equal("7", of(seen, "execute_result").data["text/plain"])
    end)
  end)

  with_zmq("drops messages that are not signed, and goes on", function()
    in_kernel(function()
      local frames = wire.write(wire.new("another key", "stranger"), {}, "execute_request",
        { code = "broken = 1" })
      zmq.send(sockets.shell, frames)
      zmq.send(sockets.shell, { "nonsense" })
      zmq.send(sockets.control, { "", "\255" })
      local _, seen = run("broken")
      assert.is_nil(of(seen, "execute_result"))
    end)
  end)

  with_zmq("does not run the cells after one that failed, and answers a crash", function()
    in_kernel(function()
      send("shell", "execute_request", { code = "error('stop')" })
      send("shell", "execute_request", { code = "never = 1" })
      assert.equal("error", (select(2, receive("shell"))).status)
      assert.equal("aborted", (select(2, receive("shell"))).status)
      local _, seen = run("never")
      assert.is_nil(of(seen, "execute_result"))
      send("shell", "execute_request",
        { code = "local ffi = require 'ffi' ffi.cdef 'int getpid(); int kill(int, int);' " ..
        "ffi.C.kill(ffi.C.getpid(), 11)" })
      local _, reply = receive("shell")
      assert.same({ "error", "the process that runs cells has ended" }, { reply.status, reply.evalue })
      assert.equal(1, kernel:wait(10))
    end)
  end)

  with_zmq("ends when it is asked to, with what files hold written", function()
    in_kernel(function()
      local path = folder .. "/file"
      run(("file = io.open(%q, 'w'); file:write('held')"):format(path))
      send("control", "shutdown_request", { restart = false })
      local kind, reply = receive("control")
      assert.same({ "shutdown_reply", "ok" }, { kind, reply.status })
      assert.equal(0, kernel:wait(10))
      assert.equal("held", assert(io.open(path)):read("*a"))
    end)
  end)
end)
