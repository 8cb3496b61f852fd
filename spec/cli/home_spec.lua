--- The user's folders: HOME that is unset, empty, not there or not writable; TMPDIR likewise.
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local has = require("spec.support.messages").has

-- Runs the host with these variables set and those named left out.
local function run(arguments, env, unset, path)
  local all = { HF_HOME = "", XDG_CACHE_HOME = "", XDG_STATE_HOME = "", XDG_DATA_HOME = "" }
  for name, value in pairs(env) do all[name] = value end
  return host.run(arguments, { env = all, unset = unset, path = path })
end

local function output(command)
  local pipe = assert(io.popen(command))
  local text = pipe:read("*l")
  pipe:close()
  return text
end

local PLACES = [[
  print(require("accelerate.machine").default_config_file())
  print(require("accelerate.prompt.history").path())
  print(require("accelerate.models.folder").cache())]]

describe("the home folder", function()
  it("is the one of the password database where HOME is unset or empty", function()
    local home = output("getent passwd $(id -u)"):match("([^:]*):[^:]*$")
    local expected = home .. "/.cache/huggingface/accelerate/default_config.yaml\n" ..
      home .. "/.local/state/accel/history\n" .. home .. "/.cache/huggingface/hub\n"
    for _, case in ipairs { { {}, { "HOME", "ACCELERATE_HISTORY" } },
      { { HOME = "" }, { "ACCELERATE_HISTORY" } } } do
      local status, out, err = run({ "-e", PLACES }, case[1], case[2])
      assert.equal(0, status, err)
      assert.equal(expected, out)
    end
  end)

  it("stands for ~ in HF_HOME, where files are written as where they are read", function()
    host.in_folder(function(folder)
      local env = { HOME = folder, HF_HOME = "~/hub" }
      local status, _, err = run({ "config", "default" }, env)
      assert.equal(0, status, err)
      assert.is_true(fs.exists(folder .. "/hub/accelerate/default_config.yaml"))
      local _, out = run({ "--explain" }, env)
      has(out, folder .. "/hub/accelerate/default_config.yaml")
    end)
  end)

  it("need not be writable, or be there", function()
    for _, home in ipairs { "/proc", "/proc/nowhere", "/dev/null/x" } do
      local env = { HOME = home }
      local status, out, err = run({ "-i", "-e", "print(1 + 1)" }, env)
      assert.equal(0, status, err)
      assert.equal("2\n", out)
      status = run({ "env" }, env)
      assert.equal(0, status)
      for _, words in ipairs { { "config", "default" }, { "kernel", "install" } } do
        status, out, err = run(words, env)
        assert.equal(1, status)
        assert.equal("", out)
        assert.matches("^accel%-run " .. words[1] .. ": cannot make the directory " .. home ..
          "[^\n]*: [^\n]*\n$", err)
      end
    end
  end)

  it("may be missing for a user whom no database knows", function()
    if output "id -u" ~= "0" then return pending("needs root, to become such a user") end
    if not output(
      "setpriv --reuid 47110 --clear-groups test -r lua/accelerate/init.lua && echo readable") then
      return pending("needs a tree that other users can read, which none below /root is")
    end
    host.in_folder(function(folder)
      local path = folder .. "/accel-run"
      assert(fs.write(path, ("#!/bin/sh\nexec setpriv --reuid 47110 --clear-groups '%s' \"$@\"\n")
        :format(host.path)))
      os.execute("chmod 755 '" .. path .. "'")
      local status, out, err = run({ "-e", PLACES }, {}, { "HOME", "ACCELERATE_HISTORY" }, path)
      assert.equal(0, status, err)
      assert.equal("nil\nnil\nnil\n", out)
      status, out, err = run({ "config", "default" }, {}, { "HOME" }, path)
      assert.equal(1, status)
      assert.equal("", out)
      assert.equal("accel-run config: you have no home folder; give --config_file FILE\n", err)
      status, out, err = run({ "kernel", "install" }, {}, { "HOME" }, path)
      assert.equal(1, status)
      assert.equal("", out)
      assert.equal("accel-run kernel: you have no home folder; give --prefix FOLDER\n", err)
      status, out = run({ "env" }, {}, { "HOME" }, path)
      assert.equal(0, status)
      has(out, "none: you have no home folder")
    end)
  end)
end)

describe("the folder of temporary files", function()
  it("is /tmp where TMPDIR is unset or empty", function()
    for _, case in ipairs { { {}, { "TMPDIR" } }, { { TMPDIR = "" } } } do
      local status, out, err = run({ "-e", "local p = os.tmpname() print(p) os.remove(p)" }, case[1], case[2])
      assert.equal(0, status, err)
      assert.matches("^/tmp/[^/]+\n$", out)
    end
  end)

  it("that is empty is not where the record of a run is written", function()
    local status, _, err = run({ "--cpu", "--num_processes", "2", "--timeout", "1", "-e",
      'local a = require("accelerate").Accelerator() ' ..
        'if a.process_index == 1 then os.execute "sleep 20" end a:wait_for_everyone()' }, { TMPDIR = "" })
    local path = err:match("(/[^%s]*accel%-run%-[^%s]*%.jsonl)")
    assert.is_truthy(path, err)
    os.remove(path)
    assert.is_true(status ~= 0)
    assert.matches("^/tmp/accel%-run%-", path)
  end)

  it("that is not there is named by what needs it, and nothing else needs it", function()
    local env = { TMPDIR = "/proc/nowhere" }
    local status, out, err = run({ "--cpu", "--num_processes", "2", "-e",
      'local a = require("accelerate").Accelerator() a:wait_for_everyone() a:print(a.num_processes)' }, env)
    assert.equal(0, status, err)
    assert.equal("2\n", out)
    status, out, err = run({ "-e", "os.tmpname()" }, env)
    assert.equal(1, status)
    assert.equal("", out)
    has(err, "os.tmpname: no file can be made in '/proc/nowhere'")
  end)
end)
