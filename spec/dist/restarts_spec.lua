-- --max_restarts on several machines: machine 0 decides, all meet anew, and a machine that is gone
-- may come back.
local host = require "spec.support.host"
local machines = require "spec.support.machines"
local processes = require "spec.support.processes"
local messages = require "spec.support.messages"

local has, matches = messages.has, messages.matches

-- Saves at each start, and fails in the attempts below FAILS on the last rank; then goes on while
-- the file that arg[1] names is there.
local TRAIN = [[
  local accelerate = require "accelerate"
  local ffi = require "ffi"
  ffi.cdef "int usleep(unsigned);"
  local accelerator = accelerate.Accelerator { cpu = true,
    project_config = accelerate.ProjectConfiguration { project_dir = "FOLDER",
      automatic_checkpoint_naming = true } }
  local attempt = tonumber(os.getenv "ACCELERATE_RESTART_COUNT")
  local newest = os.getenv "ACCELERATE_NEWEST_CHECKPOINT"
  io.write(("rank %d: attempt %d from %s\n"):format(accelerator.process_index, attempt,
    newest and newest:match "[^/]*$" or "nothing"))
  io.stdout:flush()
  if newest then
    accelerator:load_state(newest)
    accelerator.project_configuration.iteration = tonumber(newest:match "%d+$") + 1
  end
  accelerator:save_state()
  accelerator:wait_for_everyone()
  if attempt < FAILS and accelerator.process_index == accelerator.num_processes - 1 then error "broken" end
  repeat
    accelerator:wait_for_everyone()
    ffi.C.usleep(20000)
    local stays = io.open("FOLDER/stay") ~= nil
    stays = accelerator:reduce(accelerate.tensor.tensor { stays and 1 or 0 }, "sum"):item() > 0
  until not stays
]]

describe("--max_restarts on several machines", function()
  after_each(processes.clean)

  -- Gives body(script, port, folder) a script that fails `fails` times.
  local function with_script(fails, body)
    host.in_folder(function(folder)
      local script = TRAIN:gsub("FOLDER", folder):gsub("FAILS", fails)
      body(processes.script(script), machines.free_port(), folder)
    end)
  end

  local function start(i, port, path, restarts)
    return machines.start(i, port, path, { launch = { "--max_restarts", tostring(restarts) } })
  end

  it("starts the ranks of all machines again, from the newest checkpoint", function()
    with_script(2, function(path, port)
      local runs = { [0] = start(0, port, path, 3), start(1, port, path, 3) }
      for i = 0, 1 do
        local status, out, err = runs[i]:wait(60)
        assert.equal(0, status, err)
        for r = 2 * i, 2 * i + 1 do
          matches(out, ("rank %d: attempt 0 from nothing\n"):format(r))
          matches(out, ("rank %d: attempt 1 from checkpoint_0\n"):format(r))
          matches(out, ("rank %d: attempt 2 from checkpoint_1\n"):format(r))
        end
        matches(err, i == 0 and "restart 2 of 3; the newest checkpoint is [^\n]*checkpoint_1\n"
          or "restart 2 of 3 with the other machines\n")
      end
    end)
  end)

  it("stops everywhere at machine 0's number", function()
    with_script(9, function(path, port)
      local runs = { [0] = start(0, port, path, 1), start(1, port, path, 9) }
      local status, _, err = runs[0]:wait(60)
      assert.equal(1, status)
      has(err, "not started again: that was restart 1 of 1\n")
      status, _, err = runs[1]:wait(60)
      assert.equal(1, status)
      has(err, "restart 1 of 9 with the other machines\n")
      assert.is_nil(err:find "restart 2")
    end)
  end)

  it("waits for a machine that is gone, and goes on with it", function()
    with_script(0, function(path, port, folder)
      io.open(folder .. "/stay", "w"):close()
      local first, second = start(0, port, path, 3), start(1, port, path, 3)
      second:expect("rank 3: attempt 0 from nothing\n", 20)
      first:expect("rank 0: attempt 0 from nothing\n", 20)
      assert.is_true(processes.wait_until(20, function()
        return io.open(folder .. "/checkpoints/checkpoint_0/accelerate_manifest.json") ~= nil
      end))
      processes.sleep(0.2)
      second:signal(processes.SIGKILL)
      second:wait(10)
      first:expect("restart 1 of 3; the newest checkpoint is", 20)
      os.remove(folder .. "/stay")
      local third = start(1, port, path, 3)
      local status, out, err = first:wait(60)
      assert.equal(0, status, err)
      matches(err, "machine 1 %([^\n]*%) is gone")
      has(out, "rank 0: attempt 1 from checkpoint_0\n")
      status, out, err = third:wait(20)
      assert.equal(0, status, err)
      has(out, "rank 2: attempt 1 from checkpoint_0\n")
    end)
  end)

  it("does not start again what a signal to a launcher ended", function()
    with_script(0, function(path, port, folder)
      io.open(folder .. "/stay", "w"):close()
      local first, second = start(0, port, path, 3), start(1, port, path, 3)
      first:expect("rank 1: attempt 0 from nothing\n", 20)
      second:expect("rank 3: attempt 0 from nothing\n", 20)
      second:signal(processes.SIGTERM)
      assert.equal(143, (second:wait(20)))
      local status, _, err = first:wait(20)
      assert.equal(1, status)
      has(err, "the run was ended by SIGTERM on machine 1")
      assert.is_nil(err:find "restart")
    end)
  end)
end)
