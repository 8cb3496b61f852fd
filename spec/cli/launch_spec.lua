-- host/launch/output.c and the restarts of host/launch/launch.c: --tee, --log_dir, --role,
-- --max_restarts,
-- --quiet.
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local has = require("spec.support.messages").has
local processes = require "spec.support.processes"

-- Runs words with a script in a fresh folder; body(out, err, folder) looks at what is there.
local function run(status, text, words, body)
  host.in_folder(function(folder)
    assert(fs.write(folder .. "/x.lua", text))
    local got, out, err = host.run(words, { folder = folder, env = { HF_HOME = folder } })
    assert(got == status, ("status %d, expected %d\nstdout: %s\nstderr: %s"):format(got, status, out, err))
    body(out, err, folder)
  end)
end

local function lines(text)
  local list = {}
  for line in text:gmatch "[^\n]*\n" do list[#list + 1] = line end
  table.sort(list)
  return list
end

describe("a launcher whose lines nobody reads", function()
  it("ends with the run's own status", function()
    host.in_folder(function(folder)
      assert(fs.write(folder .. "/x.lua", "os.execute 'sleep 0.3' os.exit(tonumber(arg[1]))"))
      for _, status in ipairs { 0, 3 } do
        processes.output(
          ("cd '%s'; { '%s' --num_processes 2 x.lua %d; echo $? >status; } 2>&1 | true"):format(
          folder, host.path, status))
        assert.are.equal(status .. "\n", fs.read(folder .. "/status"))
      end
    end)
  end)
end)

describe("--tee", function()
  -- One text a write: stderr is not buffered, and two ranks share it where no --tee splits it.
  local PRINT =
    [[io.write("a", "b\n") io.stderr:write(("e%s\n"):format(os.getenv "RANK" or "")) io.write "rest"]]

  it("puts the rank in front of each line, of stdout, stderr or both", function()
    run(0, PRINT, { "--num_processes", "2", "--tee", "3", "--role", "w", "x.lua" }, function(out, err)
      assert.are.same({ "[w0]:ab\n", "[w0]:rest\n", "[w1]:ab\n", "[w1]:rest\n" }, lines(out))
      assert.are.same({ "[w0]:e0\n", "[w1]:e1\n" }, lines(err))
    end)
    run(0, PRINT, { "-t", "2", "x.lua" }, function(out, err)
      assert.are.equal("ab\nrest", out)
      assert.are.equal("[default0]:e0\n", err)
    end)
    run(0, PRINT, { "-t1:1", "--num_processes", "2", "x.lua" }, function(out, err)
      has(out, "[default1]:ab\n")
      assert.is_nil(out:find("[default0]", 1, true))
      assert.are.same({ "e0\n", "e1\n" }, lines(err))
    end)
  end)

  it("says what is lost when the console takes no more, and the run goes on to its end", function()
    local text = "for i = 1, 100 do print(i) end io.stdout:flush() io.stderr:write('to the end\\n')"
    local started = processes.start({ "--num_processes", "2", "--tee", "1", processes.script(text) },
      { closed_stdout = true })
    local status, _, err = started:wait(20)
    assert.are.equal(1, status)
    assert.are.equal(2, select(2, err:gsub("to the end\n", "")), err)
    has(err, "accel-run: stdout could not be written: Broken pipe: some of what rank ")
    assert.are.equal(1, select(2, err:gsub("could not be written", "")), err)
    processes.clean()
  end)

  it("writes a file for each stream of each rank below --log_dir", function()
    run(0, PRINT, { "--num_processes", "2", "--tee", "0:3,1:1", "--log_dir", "deep/logs", "x.lua" },
      function(_, _, folder)
      local runs = assert(fs.list(folder .. "/deep/logs"))
      assert.are.equal(1, #runs)
      local attempt = folder .. "/deep/logs/" .. runs[1] .. "/attempt_0"
      assert.are.same({ "stderr.log", "stdout.log" }, fs.list(attempt .. "/0"))
      assert.are.same({ "stdout.log" }, fs.list(attempt .. "/1"))
      assert.are.equal("ab\nrest", fs.read(attempt .. "/1/stdout.log"))
      assert.are.equal("e0\n", fs.read(attempt .. "/0/stderr.log"))
    end)
    run(0, PRINT, { "--log_dir", "logs", "x.lua" }, function(_, err, folder)
      has(err, "accel-run: --log_dir: no file is written without --tee\n")
      assert.is_false(fs.exists(folder .. "/logs"))
    end)
    run(1, PRINT, { "--tee", "1", "--log_dir", "/proc/none", "x.lua" }, function(_, err)
      has(err, "accel-run: --log_dir /proc/none: no file can be made there: ")
    end)
  end)

  it("keeps lines whole, however long they are and however many ranks print", function()
    local text = [[local letter = string.char(97 + os.getenv "RANK")
      for i = 1, 40 do print(letter:rep(20000)) end]]
    run(0, text, { "--num_processes", "3", "--num_cpu_threads_per_process", "1", "--tee", "1", "x.lua" },
      function(out)
      local n = 0
      for line in out:gmatch "[^\n]*\n" do
        n = n + 1
        local rank, letter = line:match "^%[default(%d)%]:(%a)"
        assert.are.equal(("[default%s]:%s\n"):format(rank, string.char(97 + rank):rep(20000)), line)
        assert.are.equal(string.char(97 + rank), letter)
      end
      assert.are.equal(120, n)
    end)
  end)

  it("loses nothing of a rank that fails, and does not wait for what a rank left behind", function()
    run(7, [[print "before" io.stdout:flush() os.execute "sleep 100 &" os.exit(7)]],
      { "--tee", "3", "x.lua" }, function(out)
      assert.are.equal("[default0]:before\n", out)
    end)
  end)

  it("says what it expects", function()
    for _, word in ipairs { "4", "x", "0:", "0:4", "0:1,", "1,2" } do
      run(2, "", { "--tee", word, "x.lua" }, function(_, err)
        has(err, "accel-run: --tee: expected 0, 1 (stdout), 2 (stderr), 3 (both), or ranks with theirs " ..
          "(0:3,1:1); got '" .. word)
      end)
    end
  end)
end)

describe("--max_restarts", function()
  -- Saves in the attempts below SAVES, fails in those below FAILS.
  local TRAIN = [[
    local accelerate = require "accelerate"
    local accelerator = accelerate.Accelerator { project_config = accelerate.ProjectConfiguration {
      project_dir = "run", automatic_checkpoint_naming = true } }
    local attempt = tonumber(os.getenv "ACCELERATE_RESTART_COUNT")
    local newest = os.getenv "ACCELERATE_NEWEST_CHECKPOINT"
    accelerator:print("attempt " .. attempt .. " from " .. (newest and newest:match "[^/]*$" or "nothing"))
    if newest then
      accelerator:load_state(newest)
      accelerator.project_configuration.iteration = tonumber(newest:match "%d+$") + 1
    end
    if attempt < SAVES then accelerator:save_state() end
    accelerator:wait_for_everyone()
    if attempt < FAILS and accelerator.process_index == accelerator.num_processes - 1 then error "broken" end
  ]]
  local function train(saves, fails) return (TRAIN:gsub("SAVES", saves):gsub("FAILS", fails)) end

  it("starts all ranks again, from the newest checkpoint, until they end well", function()
    for ranks = 1, 2 do
      run(0, train(2, 2), { "--quiet", "--max_restarts", "3", "--num_processes", tostring(ranks), "x.lua" },
        function(out, err)
        assert.are.equal("attempt 0 from nothing\nattempt 1 from checkpoint_0\nattempt 2 from checkpoint_1\n",
          out)
        has(err, "accel-run: restart 1 of 3; the newest checkpoint is ")
        has(err, "accel-run: restart 2 of 3; the newest checkpoint is ")
        assert.are.equal(2, select(2, err:gsub("broken\nstack", "")))
      end)
    end
  end)

  it("stops at its number, with the ranks' status", function()
    run(1, train(9, 9), { "--quiet", "--max_restarts", "1", "--num_processes", "2", "x.lua" },
      function(out, err)
      assert.are.equal("attempt 0 from nothing\nattempt 1 from checkpoint_0\n", out)
      has(err, "accel-run: not started again: that was restart 1 of 1\n")
    end)
    run(5, "os.exit(5)", { "--max_restarts", "1", "--quiet", "x.lua" }, function() end)
  end)

  it("stops when a restart saved no checkpoint", function()
    run(1, train(1, 9), { "--quiet", "--max_restarts", "9", "--num_processes", "2", "x.lua" },
      function(out, err)
      assert.are.equal("attempt 0 from nothing\nattempt 1 from checkpoint_0\n", out)
      has(err, "accel-run: not started again: restart 1 saved no checkpoint before it failed\n")
    end)
    -- what failed for a passing reason before any checkpoint gets one more try
    run(0, train(0, 1), { "--quiet", "--max_restarts", "9", "x.lua" }, function(out)
      assert.are.equal("attempt 0 from nothing\nattempt 1 from nothing\n", out)
    end)
  end)

  it("is for any failure of a rank, and has a log of each attempt", function()
    local text = [[print(os.getenv "ACCELERATE_RESTART_COUNT")
      io.stdout:flush()
      if os.getenv "ACCELERATE_RESTART_COUNT" == "0" then
        os.execute "kill -9 $PPID"
        os.execute "sleep 5"
      end]]
    run(0, text, { "--max_restarts", "1", "--tee", "1", "--log_dir", "logs", "x.lua" },
      function(out, _, folder)
      assert.are.equal("[default0]:0\n[default0]:1\n", out)
      local attempts = folder .. "/logs/" .. fs.list(folder .. "/logs")[1]
      assert.are.same({ "attempt_0", "attempt_1" }, fs.list(attempts))
      assert.are.equal("1\n", fs.read(attempts .. "/attempt_1/0/stdout.log"))
    end)
  end)
end)

describe("--quiet", function()
  it("shows the script's error, and not where the other ranks were", function()
    run(1, "error 'mine'", { "--quiet", "--num_processes", "2", "x.lua" }, function(_, err)
      has(err, "failed: x.lua:1: mine\nstack traceback:\n")
      for _, part in ipairs { "the other ranks", "exit status" } do
        assert.is_nil(err:find(part, 1, true), err)
      end
    end)
  end)
end)
