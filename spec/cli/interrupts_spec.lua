-- Ctrl-C at a terminal, while one call of C reads a large file, and while a template runs.
local Session = require "spec.support.session"
local core = require "accelerate.core"
local disk = require "spec.support.disk"
local disks = require "spec.faults.disk"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local processes = require "spec.support.processes"

local at_terminal = Session.specs(it, pending)

local SIZE = 4e9

-- Writes a file that begins with `head` and goes on with zeros, which take no place on the disk.
local function sparse(path, head, size)
  disk.write(path, head)
  local f = assert(io.open(path, "r+b"))
  f:seek("set", #head + size - 1)
  f:write "\0"
  f:close()
end

local function safetensors_head()
  local json = ('{"a":{"dtype":"F32","shape":[%d],"data_offsets":[0,%d]}}'):format(SIZE / 4, SIZE)
  json = json .. (" "):rep(-#json % 8)
  return string.char(#json, 0, 0, 0, 0, 0, 0, 0) .. json
end

local function npy_head()
  local text = ("{'descr': '<f4', 'fortran_order': False, 'shape': (%d,), }"):format(SIZE / 4)
  text = text .. (" "):rep(-(#text + 11) % 64) .. "\n"
  return "\147NUMPY\1\0" .. string.char(#text, 0) .. text
end

describe("Ctrl-C", function()
  local function stops(chunk)
    local s = Session.open {}
    s:ask("1 + 1", "^2\n")
    s:send("io.write('on\\n') " .. chunk .. "\r")
    s:expect "\non\n"
    processes.let_compute(s.pid, 0.1)
    local elapsed = processes.stopwatch()
    s:send "\3"
    s:expect "interrupted\n"
    assert.is_true(elapsed() < 0.6)
    s:ask("2 + 2", "^4\n")
    s:stop()
  end

  local function file_is_left(name, head, call, size)
    at_terminal("ends the reading of a large file: " .. name, function()
      if not size and core.memory_stats().limit_bytes < 5e9 then return pending "needs 5 GB of memory" end
      host.in_folder(function(folder)
        sparse(folder .. "/" .. name, head, size or SIZE)
        stops(("x = %s('%s/%s')"):format(call, folder, name))
      end)
    end)
  end
  file_is_left("x.safetensors", safetensors_head(), "accelerate.utils.load")
  file_is_left("x.npy", npy_head(), "data.read_npy")
  file_is_left("digest", "", "require 'accelerate.utils.fs'.digest", 3e10)

  -- Each call of the disk takes 50 ms more, and the writing is met in its first calls: some hundred
  -- are needed until all is written.
  local function file_is_written(name, chunk)
    at_terminal("ends the writing of a large file and leaves none: " .. name, function()
      if core.memory_stats().limit_bytes < 1e9 then return pending "needs 1 GB of memory" end
      host.in_folder(function(base)
        local folder = base .. "/files"
        fs.make_dirs(folder)
        local plan = disks.plan(base, folder .. "/", { folder },
          { what = "slow", number = 50000, at = 1, lasts = true })
        local s = Session.open({}, plan:env())
        s:ask("x = tensor.ones(1e8) a = accelerate.Accelerator() m = nn.Linear(1e4, 1e4, { dtype = " ..
          "'float32' }) " ..
          "a:prepare(m) 1 + 1", "^2\n")
        s:send(chunk:format(folder) .. "\r")
        processes.wait_until(10, function() return plan:calls(0):find "w" end)
        s:send "\3"
        s:expect "interrupted\n"
        local calls = plan:calls(0)
        assert.is_nil(calls:find "s", calls) -- the sync of a file that has been written whole
        s:ask("2 + 2", "^4\n")
        assert.same({}, fs.list(folder))
        s:stop()
        plan:free()
      end)
    end)
  end
  file_is_written("save", "accelerate.utils.save({ x }, '%s/x.pt')")
  file_is_written("save_safetensors", "accelerate.utils.save({ x = x }, '%s/x.safetensors')")
  file_is_written("save_state", "a:save_state('%s/state')")

  at_terminal("ends a template", function()
    stops("x = require 'accelerate.tokenizers.chat'.render('{% set x = range(99999)|list %}" ..
      "{% for i in range(99999) %}{% set y = x|tojson %}{% endfor %}', {})")
  end)
end)
