-- host/launch/door.c: machine 0's port, and who knocks there.
local core = require "accelerate.core"
local ffi = require "ffi"
local host = require "spec.support.host"
local machines = require "spec.support.machines"
local processes = require "spec.support.processes"
local messages = require "spec.support.messages"

local has, matches = messages.has, messages.matches

ffi.cdef "long recv(int fd, void *to, size_t size, int flags);"
local C = ffi.C

local SCRIPT = "require('accelerate.core').dist.barrier() print('rank ' .. " ..
  "require('accelerate.core').dist.rank())"

-- A connection to a port of this host, as soon as one listens there.
local function connect(port)
  local address, fd = machines.internet(port), nil
  assert(processes.wait_until(10, function()
    fd = C.socket(2, 1, 0)
    if C.connect(fd, address, 16) == 0 then return true end
    C.close(fd)
  end), "nobody listens")
  return fd
end

local function send(fd, text) return C.send(fd, text, #text, 0x4000) end

local function receive(fd, n)
  local buffer = ffi.new("char[?]", n)
  local got = C.recv(fd, buffer, n, 0x100) -- all of it
  return got > 0 and ffi.string(buffer, got) or ""
end

local function int32(n) return ffi.string(ffi.new("int32_t[1]", n), 4) end

local MAGIC = int32(0x6c636361)

-- What a machine's launcher says, but for its nonce and code.
local VERSION = 3 -- AX_DOOR_VERSION of host/launch/door.h

local function hello(version, layout)
  return MAGIC .. int32(version) .. int32(layout) .. int32(2) .. int32(1) .. int32(2) ..
    int32(-1) .. int32(0) .. ("\0"):rep(8)
end

local function digest(key, text)
  return (core._hmac_sha256(key, text):gsub("%x%x",
    function(pair) return string.char(tonumber(pair, 16)) end))
end

describe("a stranger at machine 0's port", function()
  after_each(processes.clean)

  local function meets(strangers, opts)
    opts = opts or {}
    local port, path = machines.free_port(), processes.script(SCRIPT)
    local options = { ranks = 2, timeout = 15, env = opts.env, launch = opts.launch }
    local first = machines.start(0, port, path, options)
    local open = strangers(port)
    local elapsed = processes.stopwatch()
    local second = machines.start(1, port, path, options)
    local errors = {}
    for k, run in ipairs { first, second } do
      local status, out, err = run:wait(10)
      assert.are.equal(0, status, err)
      assert.are.equal(("rank %d\n"):format(k - 1), out)
      errors[k] = err
    end
    assert.is_true(elapsed() < 1.5, "it took " .. elapsed() .. " s")
    for _, fd in ipairs(open or {}) do C.close(fd) end
    return errors[1]
  end

  it("that says nothing delays nobody, nor do 200 of them", function()
    for _, n in ipairs { 30, 200 } do
      meets(function(port)
        local open = {}
        for k = 1, n do open[k] = connect(port) end
        return open
      end)
    end
  end)

  it("that says something else is sent away, and the first few are reported", function()
    local err = meets(function(port)
      local open = {}
      for k, text in ipairs { "GET / HTTP/1.1\r\nHost: here\r\n\r\n", ("\255\1\0\127"):rep(100), "x",
        hello(1, 256), MAGIC, hello(VERSION, 256) .. ("x"):rep(48), "\n", ("a"):rep(1e5) } do
        open[k] = connect(port)
        send(open[k], text)
      end
      processes.sleep(0.5)
      return open
    end)
    matches(err, "a connection from 127%.0%.0%.1 to 127%.0%.0%.1:%d+ is none of accel%-run's: it begins " ..
      "with other bytes")
    has(err, "it speaks another version of the protocol; it was closed")
    matches(err, "more such connections to [^\n]* are closed without a line")
    assert.is_true(select(2, err:gsub("is none of accel%-run's", "")) <= 4)
  end)

  it("that sends a byte now and then delays nobody", function()
    meets(function(port)
      local fd = connect(port)
      local text = hello(VERSION, 256)
      for k = 1, 10 do
        send(fd, text:sub(k, k))
        processes.sleep(0.02)
      end
      return { fd }
    end)
  end)

  it("that repeats what a machine of the run said is not believed", function()
    local secret = "a secret of this run"
    local err = meets(function(port)
      local one, other = connect(port), connect(port)
      local layout = 256
      local nonce, body = receive(one, 24):sub(9, 24), hello(VERSION, layout) .. ("n"):rep(16)
      local said = body .. digest(secret, nonce .. body)
      receive(other, 24)
      send(other, said) -- right for the first connection's number
      local refused = receive(other, 656)
      assert.are.equal(int32(1), refused:sub(9, 12))
      has(refused, "machine 0 has another secret")
      -- the first stays silent; had it been believed, there would be two machines 1
      return { one, other }
    end, { env = { ACCELERATE_SECRET = secret } })
    has(err, "it does not know the secret")
  end)
end)

describe("machines with a secret", function()
  after_each(processes.clean)

  it("meet when they have the same, from a file or a variable", function()
    host.in_folder(function(folder)
      local file = assert(io.open(folder .. "/secret", "w"))
      file:write "twenty characters or so\n"
      file:close()
      os.execute(("chmod 600 '%s/secret'"):format(folder))
      local port, path = machines.free_port(), processes.script(SCRIPT)
      local first = machines.start(0, port, path,
        { ranks = 2, launch = { "--secret_file", folder .. "/secret" } })
      local second = machines.start(1, port, path, { ranks = 2,
        env = { ACCELERATE_SECRET = "twenty characters or so" } })
      for k, run in ipairs { first, second } do
        local status, out, err = run:wait(10)
        assert.are.equal(0, status, err)
        assert.are.equal(("rank %d\n"):format(k - 1), out)
        assert.are.equal("", err)
      end
    end)
  end)

  it("do not meet one that has another or none; machine 0 waits on", function()
    local port, path = machines.free_port(), processes.script(SCRIPT)
    local env = { ACCELERATE_SECRET = "the secret of this run" }
    local first = machines.start(0, port, path,
      { ranks = 2, env = env, launch = { "--stall_report", "0.3" } })
    for _, given in ipairs { "another secret", false } do
      local status, _, err = machines.start(1, port, path, { ranks = 2,
        env = given and { ACCELERATE_SECRET = given } or nil }):wait(10)
      assert.are.equal(1, status)
      matches(err, "machine 0 at 127%.0%.0%.1:%d+ and machine 1 do not have the same secret %(here it " ..
        "is from " ..
        (given and "ACCELERATE_SECRET" or "nowhere"))
    end
    first:expect("so far; 2 connections, the last one from 127%.0%.0%.1, had another secret %(here it " ..
      "is from " ..
      "ACCELERATE_SECRET%)", 10)
    local second = machines.start(1, port, path, { ranks = 2, env = env })
    assert.are.equal(0, (second:wait(10)))
    local status, _, err = first:wait(10)
    assert.are.equal(0, status)
    has(err, "it does not know the secret; it was closed")
  end)

  it("check it before anything starts", function()
    for env, text in pairs {
      [{ ACCELERATE_SECRET = "short" }] = "ACCELERATE_SECRET has 5 characters; expected 8",
      [{ ACCELERATE_SECRET_FILE = "/nowhere/secret" }] = "/nowhere/secret cannot be read: No such file" } do
      local status, _, err = host.run({ "--num_machines", "2", "--num_processes", "2", "--main_process_ip",
        "127.0.0.1", "--main_process_port", tostring(machines.free_port()), "-e", "" }, { env = env })
      assert.are.equal(2, status)
      matches(err, text)
    end
  end)

  it("refuse one with a NUL, which HMAC takes for another", function()
    for _, secret in ipairs { ("\0"):rep(20), "x23456789\0" } do
      local path = processes.script(secret)
      local status, _, err = host.run { "--num_machines", "2", "--num_processes", "2", "--main_process_ip",
        "127.0.0.1", "--main_process_port", tostring(machines.free_port()), "--secret_file", path, "-e", "" }
      assert.are.equal(2, status)
      has(err, path .. " has a NUL among its bytes; expected a secret without\n")
    end
  end)
end)

describe("machine 0 and those that wait for it", function()
  after_each(processes.clean)

  it("say so, and that the network is trusted where there is no secret", function()
    local port, path = machines.free_port(), processes.script(SCRIPT)
    local options = { ranks = 2, timeout = 20, launch = { "--stall_report", "0.3" },
      addresses = { "0.0.0.0", "127.0.0.1" } }
    local second = machines.start(1, port, path, options)
    second:expect("machine 1 waits for machine 0 at 127%.0%.0%.1:%d+, for %d+ s so far: Connection refused",
      10)
    local first = machines.start(0, port, path, options)
    local status, _, err = first:wait(10)
    assert.are.equal(0, status)
    matches(err, "the machines have no secret: whoever can reach 0%.0%.0%.0:%d+ is trusted %(%-%-secret_file")
    assert.are.equal(0, (second:wait(10)))
  end)
end)
