-- What MLflow's file store, DVCLive's folder and ClearML's offline task hold.
local accelerate = require "accelerate"
local json = require "accelerate.utils.json"
local notice = require "accelerate.messages.notice"
local trackers = require "spec.support.trackers"
local yaml = require "accelerate.utils.yaml"
local tensor = accelerate.tensor
local find, names, read, stderr_of, with = trackers.find, trackers.names, trackers.read, trackers.stderr_of,
  trackers.with

--- Logs a run with one tracker; returns the notices of the run.
local function run_with(name, accelerator, given)
  notice.reset()
  accelerator:init_trackers("proj", { init_kwargs = { [name] = given },
    config = { lr = 0.1, nested = { on = true, list = { 1, 2 } } } })
  return stderr_of(function()
    accelerator:log({ loss = 0.5, m = { a = 0 / 0, b = 1 }, ok = true, eval_acc = 0.25, note = "hi" },
      { step = 3 })
    accelerator:log({ loss = 1e-7, m = 2, ["../up"] = 1 }, { step = 4 })
    local tracker = accelerator:get_tracker(name)
    tracker:log_images({ img = tensor.rand(3, 2, 2) }, { step = 4 })
    tracker:log_table("tab", { columns = { "a", "b" }, data = { { 1, "x" }, { 2, "y" } } })
  end)
end

describe("MLflow's file store", function()
  local function store_with(body, given)
    with("mlflow", function(accelerator, folder)
      given = given or {}
      given.tracking_uri = folder .. "/a store"
      local said = run_with("mlflow", accelerator, given)
      local run = find(folder, "/tags/mlflow%.user$")[1]:match "^(.*)/tags/"
      body(accelerator, run, said, folder)
    end)
  end

  it("has a file for each metric, param and tag", function()
    store_with(function(accelerator, run)
      assert.truthy(read(run .. "/metrics/loss"):find "^%d+ 0%.5 3\n%d+ 1e%-07 4\n$")
      assert.truthy(read(run .. "/metrics/m/a"):find "^%d+ nan 3\n$")
      assert.truthy(read(run .. "/metrics/ok"):find "^%d+ 1 3\n$")
      assert.are.equal("0.1", read(run .. "/params/lr"))
      assert.are.equal("True", read(run .. "/params/nested/on"))
      assert.are.equal("[1, 2]", read(run .. "/params/nested/list"))
      assert.are.equal("one", read(run .. "/tags/mlflow.runName"))
      assert.are.equal("of a spec", read(run .. "/tags/mlflow.note.content"))
      assert.are.equal("b", read(run .. "/tags/a"))
      assert.are.same({ columns = { "a", "b" }, data = { { 1, "x" }, { 2, "y" } } },
        json.decode(read(run .. "/artifacts/tab.json")))
      assert.are.same({ { path = "tab.json", type = "table" } },
        json.decode(read(run .. "/tags/mlflow.loggedArtifacts")))
      assert.are.equal("\137PNG", read(run .. "/artifacts/images/img_4_1.png"):sub(1, 4))
      local meta = yaml.decode(read(run .. "/meta.yaml"))
      assert.are.same({ 1, "null" }, { meta.status, meta.end_time == yaml.null and "null" })
      accelerator:end_training()
      meta = yaml.decode(read(run .. "/meta.yaml"))
      assert.are.same({ 3, "one", run:match "[^/]*$" }, { meta.status, meta.run_name, meta.run_id })
      assert.is_true(meta.end_time >= meta.start_time)
      assert.truthy(meta.artifact_uri:find("^file:///.*/a%%20store/" .. meta.experiment_id .. "/" ..
        meta.run_id ..
        "/artifacts$"))
      local experiment = yaml.decode(read(run:match "^(.*)/" .. "/meta.yaml"))
      assert.are.same({ "proj", "active", meta.experiment_id },
        { experiment.name, experiment.lifecycle_stage, experiment.experiment_id })
    end, { run_name = "one", description = "of a spec", tags = '{"a": "b"}' })
  end)

  it("lacks what MLflow's files cannot have, and says so", function()
    store_with(function(_, run, said)
      assert.truthy(said:find("the value of 'note' is a text", 1, true))
      assert.truthy(said:find("the name '../up' is left out of metrics", 1, true))
      assert.truthy(said:find("the name 'm' is left out of metrics, because it is also the beginning", 1,
        true))
      assert.are.same({ "eval_acc", "loss", "m/a", "m/b", "ok" }, names(run .. "/metrics"))
    end)
  end)

  it("goes on with a run, whose params stay", function()
    store_with(function(accelerator, run, _, folder)
      accelerator:end_training()
      with("mlflow", function(second)
        local said = stderr_of(function()
          second:init_trackers("proj", { config = { lr = 0.2, more = 1 }, init_kwargs = { mlflow = {
            tracking_uri = "file:" .. folder .. "/a%20store", run_id = run:match "[^/]*$" } } })
        end)
        second:log({ loss = 0.25 }, { step = 5 })
        assert.are.equal(1, yaml.decode(read(run .. "/meta.yaml")).status)
        second:end_training()
        assert.truthy(said:find("the setting 'lr' of this run is '0.1' and stays so", 1, true))
        assert.are.equal("0.1", read(run .. "/params/lr"))
        assert.are.equal("1", read(run .. "/params/more"))
        assert.truthy(read(run .. "/metrics/loss"):find " 4\n%d+ 0%.25 5\n$")
        assert.are.equal(3, yaml.decode(read(run .. "/meta.yaml")).status)
      end)
    end)
  end)

  it("takes files, folders and figures as artifacts", function()
    store_with(function(accelerator, run, _, folder)
      local tracker = accelerator:get_tracker("mlflow")
      require("accelerate.utils.fs").make_dirs(folder .. "/from/inner")
      for _, name in ipairs { "a", "inner/b" } do
        local f = assert(io.open(folder .. "/from/" .. name, "wb"))
        f:write(name)
        f:close()
      end
      tracker:log_artifact(folder .. "/from/a")
      tracker:log_artifact(folder .. "/from/a", "below/it")
      tracker:log_artifacts(folder .. "/from", { artifact_path = "all" })
      tracker:log_figure(accelerate.utils.plot.curves({ loss = { 2, 1 } }), "figures/loss.svg")
      assert.are.same({ "a", "all/a", "all/inner/b", "below/it/a", "figures/loss.svg", "images/img_4_1.png",
        "tab.json" }, names(run .. "/artifacts"))
      assert.are.equal("inner/b", read(run .. "/artifacts/all/inner/b"))
      assert.error_matches(function() tracker:log_artifact(folder .. "/from/a", "../out") end,
        "log_artifact: an artifact's path lies below the run's folder, got '../out/a'", 1, true)
      assert.error_matches(function() tracker:log_artifact(folder .. "/from") end,
        "local_path must be a file %(log_artifacts takes a folder%)")
      assert.error_matches(function() tracker:log_figure({}, "x.png") end, "expected a figure of")
    end)
  end)

  it("keeps artifacts in logging_dir", function()
    with("mlflow", function(accelerator, folder)
      accelerator:init_trackers("proj", { init_kwargs = { mlflow = { tracking_uri = folder .. "/store",
        logging_dir = folder .. "/elsewhere" } } })
      accelerator:get_tracker("mlflow"):log_images({ img = tensor.rand(2, 2) }, { step = 1 })
      assert.truthy(names(folder .. "/elsewhere")[1]:find "^%x+/artifacts/images/img_1_1%.png$")
    end)
  end)

  it("is left out where the run to go on with is not there", function()
    for _, id in ipairs { "0123", "../0123" } do
      with("mlflow", function(accelerator, folder)
        local said = stderr_of(function()
          accelerator:init_trackers("proj",
            { init_kwargs = { mlflow = { tracking_uri = folder, run_id = id } } })
        end)
        assert.truthy(said:find(("there is no run '%s' in %s"):format(id, folder), 1, true))
        assert.are.same({}, names(folder))
      end)
    end
  end)

  it("is refused where a server, a database or an active run is needed", function()
    local function refused(given, message)
      with("mlflow", function(accelerator, folder)
        given.tracking_uri = given.tracking_uri or folder
        assert.error_matches(function()
          accelerator:init_trackers("proj", { init_kwargs = { mlflow = given } })
        end, message)
      end)
    end
    refused({ tracking_uri = "http://host:5000" }, "writes MLflow's file store only; got 'http://host:5000'")
    refused({ tracking_uri = "sqlite:///mlflow.db" }, "got 'sqlite:///mlflow.db'")
    refused({ logging_dir = "s3://bucket" }, "logging_dir must be a folder.*got 's3://bucket'")
    refused({ nested_run = true }, "mlflow.parentRunId")
    refused({ tags = "[" }, "must be a JSON object, got '%['")
  end)
end)

describe("DVCLive's folder", function()
  local function live_with(body, given)
    with("dvclive", function(accelerator, folder)
      given = given or {}
      given.dir = folder .. "/live"
      if given.dvcyaml == nil then given.dvcyaml = folder .. "/dvc.yaml" end
      body(accelerator, given.dir, run_with("dvclive", accelerator, given), folder)
    end)
  end

  it("has a table for each metric, the last values, and the settings", function()
    live_with(function(accelerator, dir, said, folder)
      accelerator:log({ loss = 3 })
      accelerator:log({ loss = 4, quiet = 1 },
        { step = 9, log_kwargs = { dvclive = { plot = false } } })
      accelerator:end_training()
      assert.are.equal("step\tloss\n3\t0.5\n4\t1e-07\n5\t3\n", read(dir .. "/plots/metrics/loss.tsv"))
      assert.are.equal("step\ta\n3\tnan\n", read(dir .. "/plots/metrics/m/a.tsv"))
      assert.are.equal("step\tnote\n3\thi\n", read(dir .. "/plots/metrics/note.tsv"))
      assert.are.equal("step\tok\n3\tTrue\n", read(dir .. "/plots/metrics/ok.tsv"))
      assert.are.same({ loss = 4, m = { a = "nan", b = 1 }, ok = true, eval_acc = 0.25, note = "hi",
        quiet = 1,
        step = 9 }, json.decode(read(dir .. "/metrics.json")))
      assert.are.same({ lr = 0.1, nested = { on = true, list = { 1, 2 } } },
        yaml.decode(read(dir .. "/params.yaml")))
      assert.are.same({ metrics = { "live/metrics.json" }, params = { "live/params.yaml" },
        plots = { { ["live/plots/metrics"] = { x = "step" } }, "live/plots/images" } },
        yaml.decode(read(folder .. "/dvc.yaml")))
      assert.are.equal("\137PNG", read(dir .. "/plots/images/img/4.png"):sub(1, 4))
      assert.are.equal("a,b\n1,x\n2,y\n", read(dir .. "/tables/tab.csv"))
      assert.truthy(said:find("the name '../up' cannot be the path of a file", 1, true))
      assert.truthy(said:find("the name 'm' is taken by", 1, true))
    end)
  end)

  it("adds the time of each value where that is asked for", function()
    with("dvclive", function(accelerator, folder)
      accelerator:init_trackers("p", { init_kwargs = { dvclive = { dir = folder, dvcyaml = false } } })
      accelerator:log({ loss = 1 }, { step = 2, log_kwargs = { dvclive = { timestamp = true } } })
      assert.truthy(read(folder .. "/plots/metrics/loss.tsv"):find "^timestamp\tstep\tloss\n%d+\t2\t1\n$")
      assert.are.same({}, find(folder, "dvc%.yaml$"))
    end)
  end)

  it("is emptied by the next run, unless that resumes", function()
    live_with(function(accelerator, dir, _, folder)
      accelerator:end_training()
      local function again(resume)
        with("dvclive", function(second)
          second:init_trackers("p",
            { init_kwargs = { dvclive = { dir = dir, resume = resume, dvcyaml = false } } })
          second:log({ fresh = 1 })
          second:end_training()
        end)
        return json.decode(read(dir .. "/metrics.json"))
      end
      assert.are.same({ 5, 1e-7 }, { again(true).step, again(true).loss })
      assert.are.same({ fresh = 1, step = 0 }, again(false))
      assert.are.same({ "fresh.tsv" }, names(dir .. "/plots/metrics"))
      assert.are.same({ "live/tables/tab.csv" }, { find(folder, "tab%.csv$")[1]:sub(#folder + 2) })
    end)
  end)

  it("leaves a dvc.yaml of somebody else's alone, and says what it needs", function()
    with("dvclive", function(accelerator, folder)
      local f = assert(io.open(folder .. "/dvc.yaml", "w"))
      f:write("# mine\nstages: {}\n")
      f:close()
      local said = stderr_of(function()
        accelerator:init_trackers("p", { init_kwargs = { dvclive = { dir = folder .. "/live",
          dvcyaml = folder .. "/dvc.yaml" } } })
        accelerator:log({ loss = 1 })
        accelerator:end_training()
      end)
      assert.are.equal("# mine\nstages: {}\n", read(folder .. "/dvc.yaml"))
      assert.truthy(said:find("is there already and stays as it is.*metrics:\n  %- live/metrics%.json\n"))
    end)
  end)

  it("is refused what needs DVC, git or a server", function()
    for name, word in pairs { report = "dvc plots show", save_dvc_exp = "dvc exp save",
      cache_images = "dvc add",
      exp_name = "%-%-name", exp_message = "%-%-message", monitor_system = "psutil" } do
      with("dvclive", function(accelerator, folder)
        assert.error_matches(function()
          accelerator:init_trackers("p", { init_kwargs = { dvclive = { dir = folder, [name] = true } } })
        end, "option '" .. name .. "' .*" .. word)
      end)
    end
    with("dvclive", function(accelerator, folder)
      assert.error_matches(function()
        accelerator:init_trackers("p", { init_kwargs = { dvclive = { dir = folder, dvcyaml = "x.yaml" } } })
      end, "dvcyaml must be a path that ends in dvc.yaml, or false, got 'x.yaml'")
    end)
  end)
end)

describe("ClearML's offline task", function()
  it("is what Task.import_offline_session takes", function()
    with("clearml", function(accelerator, folder)
      local said = run_with("clearml", accelerator, { dir = folder, task_name = "one/two", tags = { "x" } })
      accelerator:log({ final = 7, test_final = 8 })
      accelerator:end_training()
      local dir = find(folder, "/task%.json$")[1]:match "^(.*)/task"
      assert.truthy(dir:find "/offline/offline%-%x+$")
      local task = json.decode(read(dir .. "/task.json"))
      assert.are.same({ dir:match "[^/]*$", "proj", "one/two", "training", { "x" }, dir },
        { task.id, task.project_name, task.name, task.type, task.tags, task.offline_folder })
      assert.are.same({ lr = 0.1, nested = { on = true, list = { 1, 2 } } },
        json.decode(task.configuration.General.value))
      local sent = task.hyperparams.General
      assert.are.same({ "0.1", "float", "True", "bool" },
        { sent.lr.value, sent.lr.type, sent["nested/on"].value,
        sent["nested/on"].type })
      local seen = {}
      for line in read(dir .. "/metrics.jsonl"):gmatch "[^\n]+" do
        for _, event in ipairs(json.decode(line)) do
          assert.are.equal(task.id, event.task)
          seen[#seen + 1] = ("%s %d %s %s %s"):format(event.type, event.iter, event.metric, event.variant,
            event.value or event.key or json.decode(event.plot_str).data[1].header.values[2])
        end
      end
      local picture = ("proj/one_two.%s/metrics/img/train/img_train_00000000.png"):format(task.id)
      assert.are.same({
        "training_stats_scalar 3 acc eval 0.25", "training_stats_scalar 3 loss train 0.5",
        "training_stats_scalar 3 m b 1", "training_stats_scalar 3 ok train 1",
        "training_stats_scalar 4 ../up train 1", "training_stats_scalar 4 loss train 1e-07",
        "training_stats_scalar 4 m train 2", "training_debug_image 4 img train " .. picture,
        "plot 0 tab train b",
        "training_stats_scalar -2147483648 Summary final 7",
        "training_stats_scalar -2147483648 Summary test_final 8",
      }, seen)
      assert.are.equal("\137PNG", read(dir .. "/data/" .. picture):sub(1, 4))
      assert.truthy(said:find("'m' of 'a' was nan, which ClearML does not take", 1, true))
      assert.truthy(said:find("the value of 'note' is a text", 1, true))
    end)
  end)

  it("has one of ClearML's types", function()
    with("clearml", function(accelerator)
      assert.error_matches(function()
        accelerator:init_trackers("p", { init_kwargs = { clearml = { task_type = "trainig" } } })
      end, "option 'task_type' must be one of training, testing.*did you mean 'training'")
    end)
  end)
end)
