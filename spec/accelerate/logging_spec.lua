-- Loggers: levels, ranks, the place that lines point at; and the progress bar where there is no
-- terminal.
local accelerate = require "accelerate"
local host = require "spec.support.host"
local ranks = require "spec.support.ranks"
local state = require "accelerate.state"

local function count(text, what) return select(2, text:gsub(what, "")) end

--- Runs a script of its own (levels and handlers are the process'); returns stdout and stderr.
local function run(script, env, n)
  local out, err = ranks.ok(n or 1, script, { env = env })
  return out, err
end

describe("get_logger", function()
  it("raises when it is used before any state", function()
    state.reset()
    local logger = accelerate.logging.get_logger("x")
    assert.error_matches(function() logger:info("x") end,
      "make an Accelerator or call PartialState%(%) first")
    assert.error_matches(function() logger:warning_once("x") end,
      "make an Accelerator or call PartialState%(%) first")
  end)

  it("names what is wrong with a call", function()
    accelerate.PartialState()
    local logger = accelerate.logging.get_logger("x")
    assert.error_matches(function() accelerate.logging.get_logger() end, "name is missing")
    assert.error_matches(function() accelerate.logging.get_logger("x", "INFOO") end,
      "unknown level 'INFOO', did you mean 'INFO'%?")
    assert.error_matches(function() accelerate.logging.get_logger("x", { level = 1 }) end,
      "unknown option 'level'; did you mean 'log_level'")
    assert.error_matches(function() logger:info("%d", "a") end, "'%%d' does not fit its values")
    assert.error_matches(function() logger:info("x", { in_ordr = true }) end, "did you mean 'in_order'")
    assert.error_matches(function() logger:log("LOUD", "x") end, "logger:log: unknown level 'LOUD'")
    assert.error_matches(function() return logger.warn_once end, "did you mean 'warning_once'")
    assert.error_matches(function() accelerate.logging.basicConfig { format = "%(lvl)s" } end,
      "unknown field 'lvl'")
    assert.error_matches(function() accelerate.logging.basicConfig { format = "%(name)d" } end,
      "the field 'name' is written %%%(name%)s")
    assert.error_matches(function() accelerate.logging.basicConfig { handlers = { 5 } } end,
      "entry 1 must be a function, got 5")
    state.reset()
  end)

  it("takes its level from the argument, from ACCELERATE_LOG_LEVEL, or is at WARNING; and sets the root's",
    function()
    local script = [[
      local logging = accelerate.logging
      accelerate.PartialState()
      local one = logging.get_logger("one", arg[1])
      local two = logging.get_logger("two")
      for _, logger in ipairs { one, two } do
        for _, level in ipairs { "debug", "info", "warning", "error", "critical" } do
          logger[level](logger, "at %s", level)
        end
      end
    ]]
    local _, err = run(script)
    assert.are.equal(3, count(err, "one:"))
    assert.are.equal(3, count(err, "two:"))
    assert.truthy(err:find("CRITICAL:two:script.lua:%d+:%[RANK 0%] at critical\n"))
    _, err = run(script, { ACCELERATE_LOG_LEVEL = "debug" })
    assert.are.equal(10, count(err, "\n"))
    _, err = run("arg = { 'ERROR' }\n" .. script)
    assert.are.equal(2, count(err, "one:"))
    assert.are.equal(2, count(err, "two:"))  -- the root has it too
    _, err = run("arg = { 'INFO' }\n" .. script, { ACCELERATE_LOG_LEVEL = "critical" })
    assert.are.equal(4, count(err, "one:"))
    assert.are.equal(1, count(err, "two:"))
  end)

  it("points at the line that calls, also through wrappers", function()
    local _, err = run([[
      accelerate.PartialState()
      local logger = accelerate.logging.get_logger("x", "INFO")
      logger:info("here")                                  -- line 3
      local function helper(text)
        logger:warning(text, { stacklevel = 2 })
      end
      helper("there")                                      -- line 7
      accelerate.PartialState():on_main_process(function()
        logger:log("ERROR", "inside")                      -- line 9
      end)()
      logger:info("in order", { in_order = true })         -- line 11
      logger:warning_once("once")                          -- line 12
    ]])
    local seen = {}
    for line, text in err:gmatch("script.lua:(%d+):%[RANK 0%] (%w+)") do
      seen[#seen + 1] = text .. (line - ranks.prelude_lines)
    end
    assert.are.same({ "here3", "there7", "inside9", "in11", "once12" }, seen)
  end)

  it("logs on the main process, on all, or on all in order, with the rank before the text", function()
    local out = run([[
      accelerate.logging.basicConfig { stream = "stdout", format = "%(levelname)s %(message)s",
        level = "INFO" }
      local logger = accelerate.logging.get_logger("x")
      accelerate.Accelerator()
      logger:info("main")
      logger:info("all %d", rank, { main_process_only = false })
      accelerate.PartialState():wait_for_everyone()
      for _ = 1, 3 do
        logger:info("in order", { in_order = true })
        -- below the level: it waits for nobody
        if rank > 0 then logger:debug("below", { in_order = true }) end
        logger:error("%s too", "errors", { in_order = true })
      end
    ]], nil, 3)
    assert.are.equal(1, count(out, "main"))
    assert.are.equal(3, count(out, "all"))
    assert.truthy(out:find("INFO [RANK 1] all 1\n", 1, true))
    local order = {}
    for rank, text in out:gmatch("%[RANK (%d)%] (%a+) %a+") do
      if text == "in" or text == "errors" then order[#order + 1] = text .. rank end
    end
    local round = { "in0", "in1", "in2", "errors0", "errors1", "errors2" }
    local wanted = {}
    for _ = 1, 3 do
      for _, entry in ipairs(round) do wanted[#wanted + 1] = entry end
    end
    assert.are.same(wanted, order)
  end)

  it("hands records to handlers, or lines to a file", function()
    host.in_folder(function(folder)
      run(([[
        accelerate.PartialState()
        local logging, seen = accelerate.logging, {}
        local logger = logging.get_logger("x", "DEBUG")
        logging.basicConfig { handlers = { function(text, record) seen[#seen + 1] = { text, record } end },
          format = "%%(message)-20s|%%(levelno)d" }
        logger:debug("hello")
        check(seen[1][1] == "[RANK 0] hello      |10", seen[1][1])
        local record = seen[1][2]
        check(record.name == "x" and record.levelname == "DEBUG" and record.filename == "script.lua"
          and record.process_index == 0)
        check(math.abs(record.created - os.time()) < 10 and record.pathname:find("/script.lua$"))
        logging.basicConfig { filename = %q, format = "%%(asctime)s %%(message)s", datefmt = "%%Y" }
        logger:debug("in the file")
      ]]):format(folder .. "/log"))
      local f = assert(io.open(folder .. "/log"))
      assert.truthy(f:read("*a"):find("^%d%d%d%d %[RANK 0%] in the file\n$"))
      f:close()
    end)
  end)
end)

describe("warning_once", function()
  it("says the same only once", function()
    local _, err = run([[
      accelerate.PartialState()
      local logger, other = accelerate.logging.get_logger("x"), accelerate.logging.get_logger("y")
      for i = 1, 4 do
        logger:warning_once("same")
        logger:warning_once("number %d", i % 2)
        other:warning_once("same")
      end
    ]])
    assert.are.equal(2, count(err, "same"))
    assert.are.equal(2, count(err, "number"))
  end)
end)

describe("tqdm", function()
  it("writes whole lines where there is no terminal, on the local main process only", function()
    local _, err = ranks.ok(2, [[
      local sum = 0
      for x in accelerate.utils.tqdm({ 1, 2, 3 }, { desc = "bar of " .. rank }):iter() do sum = sum + x end
      check(sum == 6)
      for _ in accelerate.utils.tqdm({ 1 },
        { desc = "each " .. rank, main_process_only = false }):iter() do end
    ]])
    assert.are.equal(1, count(err, "bar of"))
    assert.are.equal(2, count(err, "each"))
    assert.truthy(err:find("bar of 0: 100%%|[^\n]*| 3/3 %[%d%d:%d%d<00:00"), err)
    assert.falsy(err:find("[\r\27]"))
    assert.are.equal("\n", err:sub(-1))
    assert.are.equal(3, count(err, "\n"))
  end)
end)

describe("tracebacks", function()
  it("name the rank and the line, whatever ACCELERATE_ENABLE_RICH says", function()
    local script = [[
      accelerate.Accelerator()
      if rank == 1 then error("boom") end
      accelerate.PartialState():wait_for_everyone()
    ]]
    local texts = {}
    for i, value in ipairs { "", "true", "no" } do
      local status, _, err = ranks.run(2, script, { env = { ACCELERATE_ENABLE_RICH = value } })
      assert.are.equal(1, status)
      assert.truthy(err:find("script.lua:" .. ranks.prelude_lines + 2 .. ": boom", 1, true), err)
      assert.truthy(err:find("stack traceback", 1, true), err)
      assert.truthy(err:find("rank 1", 1, true), err)
      texts[i] = err:match("[^\n]*boom")
    end
    assert.are.equal(texts[1]:match("script.lua.*"), texts[2]:match("script.lua.*"))
    assert.are.equal(texts[1]:match("script.lua.*"), texts[3]:match("script.lua.*"))
  end)
end)
