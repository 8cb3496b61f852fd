-- Trackers: how they are chosen and passed what is logged, and that none of them ever stops
-- training.
local accelerate = require "accelerate"
local host = require "spec.support.host"
local ranks = require "spec.support.ranks"
local state = require "accelerate.state"
local trackers = require "spec.support.trackers"
local tensor = accelerate.tensor
local tracking = accelerate.tracking
local find, read, stderr_of, with = trackers.find, trackers.read, trackers.stderr_of, trackers.with

describe("log_with", function()
  after_each(function() state.reset() end)

  it("takes a name, an object, a list of them, 'all'", function()
    local Mine = tracking.class("Mine")
    Mine.name, Mine.requires_logging_directory, Mine.tracker = "mine", false, {}
    local mine = Mine()
    assert.are.same({ "jsonl" }, tracking.filter_trackers("jsonl", "x"))
    assert.are.same({ "jsonl", "csv" },
      tracking.filter_trackers({ "jsonl", tracking.LoggerType.CSV, "jsonl" }, "x"))
    assert.are.equal(mine, tracking.filter_trackers(mine)[1])
    assert.are.same({}, tracking.filter_trackers(nil))
    assert.are.same({}, tracking.filter_trackers({}))
    local all = tracking.filter_trackers({ "jsonl", mine, "all" }, "x")
    assert.are.equal(mine, all[1])
    assert.are.same(tracking.get_available_trackers(), { unpack(all, 2) })
    assert.are.same({ "tensorboard", "wandb", "comet_ml", "jsonl", "csv", "mlflow", "clearml", "dvclive" },
      tracking.get_available_trackers())
    assert.are.equal("comet_ml", tracking.LoggerType.COMET_ML)
    with({ "csv", mine }, function(accelerator)
      assert.are.same({ "csv", mine }, accelerator.log_with)
      assert.are.same({}, accelerator.trackers)
      accelerator:init_trackers("p")
      assert.are.equal(2, #accelerator.trackers)
      assert.are.equal(mine, accelerator.trackers[2])
      accelerator:end_training()
      assert.are.same({}, accelerator.trackers)
    end)
    assert.are.same({}, accelerate.Accelerator({}).log_with)
  end)

  it("refuses unknown names, leaves out those that are not there, and wants a directory", function()
    assert.error_matches(function() tracking.filter_trackers("tensorbord", "x") end,
      "there is no tracker 'tensorbord', did you mean 'tensorboard'%?; " ..
      "choose between all, tensorboard, wandb")
    assert.error_matches(function() tracking.filter_trackers({ "csv", 5 }, "x") end,
      "entry 2 must be a name or a tracker, got 5")
    assert.error_matches(function() accelerate.Accelerator { log_with = "jsonl" } end,
      "the tracker 'jsonl' writes files and needs a place for them: give Accelerator a project_dir")
    local found
    local said = stderr_of(function() found = tracking.filter_trackers({ "aim", "csv" }, "x") end)
    assert.are.same({ "csv" }, found)
    assert.are.equal(
      "accelerate: log_with: the tracker 'aim' is left out, because its files are a RocksDB " ..
      "database; use tensorboard, and read the files with `aim convert tensorboard --logdir FOLDER`. " ..
      "There are " ..
      "tensorboard, wandb, comet_ml, jsonl, csv, mlflow, clearml, dvclive\n", said)
    said = stderr_of(function() tracking.filter_trackers("trackio") end)
    assert.truthy(said:find("no tracker is left", 1, true))
    for _, name in ipairs { "trackio", "aim", "swanlab" } do
      said = stderr_of(function() assert.are.same({}, tracking.filter_trackers(name)) end)
      assert.truthy(said:find(("'%s' is left out, because its files .*; use tensorboard, "):format(name)))
    end
  end)

  it("finds registered classes by name, and says when one is replaced", function()
    local Mine = tracking.class("Registered")
    function Mine:init(run, given) self.tracker = { run = run, given = given } end
    assert.error_matches(function() tracking.register_tracker_class(Mine) end,
      "Registered.name must be a text that is not empty, got nil")
    Mine.name = "registered"
    assert.error_matches(function() tracking.register_tracker_class(Mine) end,
      "requires_logging_directory must be true or false")
    Mine.requires_logging_directory = false
    assert.error_matches(function() tracking.register_tracker_class({}) end,
      "expected a class derived from GeneralTracker")
    assert.are.equal("", stderr_of(function() tracking.register_tracker_class(Mine) end))
    assert.are.equal("", stderr_of(function() tracking.register_tracker_class(Mine) end))
    with("registered", function(accelerator)
      accelerator:init_trackers("proj", { init_kwargs = { registered = { depth = 3 } } })
      assert.are.same({ run = "proj", given = { depth = 3 } },
        accelerator:get_tracker("registered", { unwrap = true }))
    end)
    local Other = tracking.class("Other", Mine)
    Other.requires_logging_directory = true
    function Other:init(run, dir) self.tracker = { run, dir } end
    assert.are.equal("accelerate: register_tracker_class: the tracker 'registered' is replaced by Other\n",
      stderr_of(function() tracking.register_tracker_class(Other) end))
    with("registered", function(accelerator, folder)
      accelerator:init_trackers("proj")
      assert.are.same({ "proj", folder }, accelerator:get_tracker("registered").tracker)
    end)
  end)
end)

describe("a tracker of one's own", function()
  local function make(name)
    local Class = tracking.class(name or "Own")
    Class.name, Class.requires_logging_directory = "own", false
    function Class:init()
      self.tracker = { calls = {} }
      for _, method in ipairs { "start", "store_init_configuration", "log", "log_images", "finish" } do
        self[method] = function(this, values, opts)
          table.insert(this.tracker.calls, { method, values, opts })
        end
      end
    end
    return Class
  end

  it("must have name, requires_logging_directory and tracker", function()
    local Empty = tracking.class("Empty")
    assert.error_matches(Empty, "Empty: the tracker lacks `name`, `requires_logging_directory`, `tracker`")
    Empty.name = "empty"
    Empty.requires_logging_directory = false
    assert.error_matches(Empty, "Empty: the tracker lacks `tracker`")
    function Empty:tracker() return self.inner end
    function Empty:init() self.inner = 5 end
    with(Empty(), function(accelerator)
      accelerator:init_trackers("p")
      assert.are.equal(5, accelerator:get_tracker("empty", { unwrap = true }))
      for _, method in ipairs { "start", "store_init_configuration", "log", "log_images", "log_table",
        "finish" } do
        accelerator:get_tracker("empty")[method](accelerator:get_tracker("empty"), {}, {})
      end
    end)
    assert.error_matches(function() tracking.class("X", {}) end,
      "the base of 'X' must be a class of trackers")
    assert.error_matches(function() tracking.class() end, "expected a name, got nil")
    assert.is_true(tracking.GeneralTracker.main_process_only)
  end)

  it("is called in order, with the step and its own options", function()
    local own = make()()
    with(own, function(accelerator)
      accelerator:init_trackers("p", { config = { lr = 1 } })
      accelerator:log({ loss = 2 }, { step = 3, log_kwargs = { own = { extra = "x" } } })
      accelerator:log({ loss = 2 }, { step = 4 })
      accelerator:log({ loss = 2 })
      accelerator:init_trackers("p")  -- again: nothing is started twice
      accelerator:end_training()
      accelerator:end_training()
      accelerator:log({ loss = 5 }, { step = 5 })
      assert.are.same({
        { "start" }, { "store_init_configuration", { lr = 1 } },
        { "log", { loss = 2 }, { step = 3, extra = "x" } },
        { "log", { loss = 2 }, { step = 4 } }, { "log", { loss = 2 }, {} }, { "finish" },
      }, own.tracker.calls)
    end)
  end)

  it("that raises is told about once and left out; training goes on, and so do the others", function()
    local calls, Bad = 0, make("Bad")
    local good = make()()
    good.name = "good"
    local bad = Bad()
    bad.log = function()
      calls = calls + 1
      error("boom")
    end
    with({ bad, good }, function(accelerator)
      local said = stderr_of(function()
        accelerator:init_trackers("p")
        for step = 1, 3 do accelerator:log({ loss = 1 }, { step = step }) end
        assert.are.equal(1, #accelerator.trackers)
        accelerator:get_tracker("own"):log({ loss = 1 })  -- a blank one
        accelerator:end_training()
      end)
      assert.are.equal(1, calls)
      assert.are.equal(1, select(2, said:gsub("\n", "")))
      assert.truthy(said:find("accelerate: tracker 'own' failed in log and is left out from here on; " ..
        "training goes on: .*boom"))
      assert.are.equal(5, #good.tracker.calls)
    end)
  end)
end)

describe("a tracker that the world fails", function()
  for _, name in ipairs { "tensorboard", "jsonl", "csv", "wandb", "comet_ml" } do
    it(name .. ": a directory that is gone, and one that cannot be made, are told once and end it", function()
      local place = { wandb = "dir", comet_ml = "offline_directory" }
      with(name, function(accelerator, folder)
        accelerator:init_trackers("proj",
          { init_kwargs = { [name] = place[name] and { [place[name]] = folder } } })
        local tracker = accelerator:get_tracker(name)
        accelerator:log({ loss = 1 }, { step = 1 })
        os.execute("rm -rf '" .. folder .. "'/*")
        local said = stderr_of(function()
          for step = 2, 9 do accelerator:log({ loss = 1 }, { step = step }) end
          tracker:log({ loss = 1 }, { step = 20 })
          accelerator:end_training()
        end)
        assert.are.equal(1, select(2, said:gsub("\n", "")), said)
        assert.truthy(said:find("tracker '" .. name ..
          "' failed and is left out from here on; training goes on: ", 1, true), said)
      end)
      with(name, function(accelerator, folder)
        local f = assert(io.open(folder .. "/proj", "w"))  -- a file where the folder is to be
        f:close()
        local said = stderr_of(function()
          accelerator:init_trackers("proj", { config = { lr = 1 },
            init_kwargs = { [name] = place[name] and { [place[name]] = folder .. "/proj" } } })
          accelerator:log({ loss = 1 }, { step = 1 })
          accelerator:end_training()
        end)
        assert.are.equal(1, select(2, said:gsub("\n", "")), said)
        assert.truthy(said:find("cannot make the directory", 1, true)
          or said:find("is not a directory", 1, true), said)
      end)
    end)
  end

  it("a full disk is one line on stderr", function()
    with("jsonl", function(accelerator, folder)
      os.execute(("mkdir '%s/proj' && ln -s /dev/full '%s/proj/metrics.jsonl'"):format(folder, folder))
      local said = stderr_of(function()
        accelerator:init_trackers("proj")
        for step = 1, 5 do accelerator:log({ loss = 1 }, { step = step }) end
        accelerator:end_training()
      end)
      assert.are.equal(1, select(2, said:gsub("\n", "")), said)
      assert.truthy(said:find("cannot write to .*metrics.jsonl: No space left on device"), said)
    end)
  end)
end)

describe("accelerator:log and its kin", function()
  after_each(function() state.reset() end)

  it("name what is wrong with a call", function()
    with("jsonl", function(accelerator)
      assert.error_matches(function() accelerator:init_trackers() end, "project_name is missing")
      assert.error_matches(function() accelerator:init_trackers("p", { configs = {} }) end,
        "did you mean 'config'")
      assert.error_matches(function() accelerator:init_trackers("p", { init_kwargs = { json = {} } }) end,
        "'json' is none of this Accelerator's trackers %(log_with%); did you mean 'jsonl'%?")
      assert.error_matches(function()
        accelerator:init_trackers("p", { init_kwargs = { jsonl = { filename = "x" } } })
      end,
        "unknown option 'filename'; did you mean 'file_name'")
      accelerator:init_trackers("p")
      assert.error_matches(function() accelerator:log(5) end,
        "values must be a table of values by name, got 5")
      assert.error_matches(function() accelerator:log({ loss = 1 }, { stp = 1 }) end, "did you mean 'step'")
      assert.error_matches(function() accelerator:log({ loss = 1 }, { step = 1.5 }) end,
        "option 'step' must be an integer, got 1.5")
      assert.error_matches(function()
        accelerator:log({ loss = 1 }, { log_kwargs = { jsonl = { sted = 1 } } })
      end, "did you mean 'step'")
      assert.error_matches(function() accelerator:get_tracker() end, "name is missing")
      assert.error_matches(function() accelerator:get_tracker("jsonll") end, "did you mean 'jsonl'")
    end)
  end)

  it("leave out what no tracker can keep, and say so once", function()
    with("jsonl", function(accelerator, folder)
      accelerator:init_trackers("proj")
      local said = stderr_of(function()
        for step = 1, 3 do
          accelerator:log({ loss = 1, weird_one = print, big = tensor.zeros(3) }, { step = step })
        end
      end)
      assert.are.equal(1, select(2, said:gsub("'weird_one' is no number", "")))
      assert.are.equal(1, select(2, said:gsub("'big' is no number", "")))
      accelerator:end_training()
      local _, lines = read(folder .. "/proj/metrics.jsonl"):gsub("\n", "")
      assert.are.equal(3, lines)
    end)
  end)

  it("give a blank tracker before init_trackers, whose methods do nothing", function()
    with("jsonl", function(accelerator)
      local blank = accelerator:get_tracker("jsonl")
      blank:log({ loss = 1 }, { step = 1 })
      blank:anything_at_all()
      accelerator:get_tracker("jsonl", { unwrap = true }):add_scalar("x", 1)
    end)
    accelerate.Accelerator():get_tracker("whatever"):finish()
  end)

  it("write on the main process only, unless the tracker says otherwise", function()
    host.in_folder(function(folder)
      ranks.ok(2, [[
        local tracking = accelerate.tracking
        local Each = tracking.class("Each")
        Each.name, Each.requires_logging_directory, Each.main_process_only = "each", false, false
        function Each:init() self.tracker = {} end
        function Each:log(values, opts) self.tracker[#self.tracker + 1] = values.loss + opts.step end
        local One = tracking.class("One", Each)
        One.name, One.main_process_only = "one", true
        local each, one, direct = Each(), One(), nil
        local accelerator = accelerate.Accelerator { log_with = { "jsonl", "wandb", each, one },
          project_dir = arg[1] }
        accelerator:init_trackers("proj", { init_kwargs = { wandb = { dir = arg[1] } } })
        accelerator:log({ loss = 10 * rank }, { step = 1 })
        accelerator:get_tracker("jsonl"):log({ direct = rank }, { step = 2 })
        check(#accelerator.trackers == (rank == 0 and 4 or 1), "trackers")
        check(#each.tracker == 1 and each.tracker[1] == 10 * rank + 1, "each")
        check(#one.tracker == (rank == 0 and 1 or 0), "one")
        check(not pcall(accelerator.get_tracker, accelerator, "nobody"), "an unknown name")
        accelerator:end_training()
      ]], { arguments = { folder } })
      local text = read(folder .. "/proj/metrics.jsonl")
      assert.are.equal(2, select(2, text:gsub("\n", "")))
      assert.truthy(text:find('"direct": 0', 1, true) and text:find('"loss": 0', 1, true))
      assert.are.equal(1, #find(folder, "%.wandb$"))
    end)
  end)
end)

describe("tracking, logging and the profiler", function()
  it("take every type of value, or refuse it with a message of their own", function()
    host.in_folder(function(folder)
      local pipe = io.popen("pwd")
      local here = pipe:read("*l")
      pipe:close()
      local status, out, err = host.run({ here .. "/spec/support/fuzz_around.lua", "." }, { folder = folder })
      assert.are.equal(0, status, err)
      assert.truthy(out:find("^%d%d%d%d calls, 0 wrong\n$"), out)
    end)
  end)
end)
