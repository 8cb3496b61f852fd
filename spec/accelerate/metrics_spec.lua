local core = require "accelerate.core"
local metrics = require "accelerate.metrics"
local ranks = require "spec.support.ranks"
local reference = require "spec.reference.metrics_reference"
local raises = require("spec.support.messages").raises

local function near(expected, got, what)
  if type(expected) == "table" then
    assert.equal(#expected, #got, what)
    for i = 1, #expected do near(expected[i], got[i], ("%s[%d]"):format(what, i)) end
  else
    assert.near(expected, got, 1e-11, what)
  end
end

-- The metric of the case's labels, given in two batches: a list and a tensor.
local function fed(name, case, opts)
  local metric = metrics.load(name, opts)
  local half = math.floor(#case.references / 2)
  metric:add_batch({ unpack(case.predictions, 1, half) }, { unpack(case.references, 1, half) })
  metric:add_batch {
    predictions = core.tensor({ unpack(case.predictions, half + 1) }, { dtype = "float64" }),
    references = core.tensor({ unpack(case.references, half + 1) }, { dtype = "float64" }),
  }
  return metric
end

describe("metrics", function()
  it("are scikit-learn's: accuracy, F1, precision, recall, Matthews' correlation", function()
    for _, case in ipairs(reference) do
      near(case.accuracy, fed("accuracy", case):compute().accuracy, case.name)
      near(case.right, fed("accuracy", case, { normalize = false }):compute().accuracy, case.name)
      near(case.matthews_correlation, fed("matthews_correlation", case):compute().matthews_correlation,
        case.name)
      for _, name in ipairs { "f1", "precision", "recall" } do
        local what = case.name .. " " .. name
        for _, average in ipairs { "micro", "macro", "weighted", "none" } do
          near(case[name][average], fed(name, case, { average = average }):compute()[name], what .. " " ..
            average)
        end
        near(case[name].macro_some, fed(name, case):compute { average = "macro", labels = { 1, 0 } }[name],
          what)
        near(case[name].micro_some, fed(name, case):compute { average = "micro", labels = { 1 },
          zero_division = 1 }[name], what)
        if case[name].binary then
          near(case[name].binary, fed(name, case):compute()[name], what)
          near(case[name].binary_0, fed(name, case):compute { pos_label = 0 }[name], what)
        end
      end
    end
  end)

  it("are scikit-learn's: the confusion matrix", function()
    for _, case in ipairs(reference) do
      local got = fed("confusion_matrix", case):compute()
      near(case.confusion_matrix, got.confusion_matrix, case.name)
      for how, matrix in pairs(case.normalized) do
        near(matrix, fed("confusion_matrix", case):compute { normalize = how }.confusion_matrix, case.name ..
          " " .. how)
      end
      assert.equal(0, got.labels[1])
    end
    local metric = metrics.load "confusion_matrix"
    metric:add_batch({ "cat", "dog" }, { "dog", "dog" })
    assert.same({ confusion_matrix = { { 0, 0 }, { 1, 1 } }, labels = { "cat", "dog" } }, metric:compute())
  end)

  it("are the usual ones of numbers", function()
    local case = reference.numbers
    for _, name in ipairs { "mse", "mae", "pearsonr" } do
      near(case[name], fed(name, case):compute()[name], name)
    end
    near(math.sqrt(case.mse), fed("mse", case, { squared = false }):compute().mse, "rmse")
    local mean = metrics.load "mean"
    mean:add(2, 3)
    mean:add(core.tensor(6), 1)
    assert.equal(3, mean:compute().mean)
    mean:add_batch(core.tensor { 1, 2, 3, 6 })
    assert.equal(3, mean:compute().mean)
    local perplexity = metrics.load "perplexity"
    perplexity:add(core.tensor(2), 10)
    perplexity:add { losses = 1, weights = 30 }
    local result = perplexity:compute()
    assert.near(math.exp(1.25), result.perplexity, 1e-12)
    assert.equal(1.25, result.loss)
  end)

  it("keep sums exact over many small values", function()
    local mean = metrics.load "mean"
    mean:add(1e16)
    for _ = 1, 1000 do mean:add(1) end
    mean:add(-1e16)
    assert.near(1000 / 1002, mean:compute().mean, 1e-12)
  end)

  it("go by the names of tasks and in groups", function()
    local metric = metrics.load("glue", "mrpc")
    metric:add_batch { predictions = { 1, 0, 1, 1 }, references = { 1, 0, 0, 1 } }
    assert.same({ accuracy = 0.75, f1 = 0.8 }, metric:compute())
    local several = metrics.combine { "accuracy", "recall" }
    assert.same({ accuracy = 0.5, recall = 0 },
      several:compute { predictions = { 0, 0 }, references = { 1, 0 } })
    several:add(1, 1)
    assert.same({ accuracy = 1, recall = 1 }, several:compute { average = "macro" })
    assert.equal(metrics.accuracy, getmetatable(metrics.load "accuracy"))
    assert.equal(metrics.f1, metrics.F1)
    metric = metrics.F1 { average = "macro" }
    metric:add { prediction = 1, reference = 1 }
    assert.equal(1, metric:compute().f1)
  end)

  it("start again after compute", function()
    local metric = metrics.load "accuracy"
    metric:add(1, 1)
    assert.equal(1, metric:compute().accuracy)
    raises("accuracy:compute: nothing was added", metric.compute, metric)
    metric:add(0, 1)
    assert.equal(0, metric:compute().accuracy)
    metric:add(core.tensor(true), true)
    assert.equal(1, metric:compute().accuracy)
  end)

  it("go on from a saved state, through a file", function()
    local utils, path = require "accelerate.utils", os.tmpname()
    for _, make in ipairs {
      function() return metrics.load("glue", "mrpc") end, function() return metrics.load "mean" end,
      function() return metrics.load "pearsonr" end, function() return metrics.load "confusion_matrix" end,
    } do
      local one, whole, first, second = make(), make(), { 1, 0, 1, 0 }, { 1, 1, 0, 1 }
      one:add_batch(first, second)
      utils.save(one:state_dict(), path)
      one:add_batch({ 1 }, { 1 }) -- not in the state
      local other = make()
      other:add_batch({ 1 }, { 0 }) -- replaced by it
      other:load_state_dict(utils.load(path))
      for _, metric in ipairs { other, whole } do
        if metric == whole then metric:add_batch(first, second) end
        metric:add_batch({ 1, 0 }, { 1, 0 })
      end
      assert.same(whole:compute(), other:compute())
    end
    os.remove(path)
    raises("f1:load_state_dict: expected what state_dict() of 'f1' returned, got that of 'mean'",
      metrics.F1().load_state_dict, metrics.F1(), metrics.load("mean"):state_dict())
    raises("load_state_dict: expected the state of 2 metrics, got 1",
      metrics.load("glue", "qqp").load_state_dict, metrics.load("glue", "qqp"), { metrics = { {} } })
  end)

  it("say what is wrong", function()
    raises("there is no metric 'acuracy'; did you mean 'accuracy'?", metrics.load, "acuracy")
    raises("glue has no task 'sst'", metrics.load, "glue", "sst")
    raises("F1: unknown option 'averge'; did you mean 'average'?", metrics.load, "f1",
      { averge = "macro" })
    local f1 = metrics.load "f1"
    raises("there are 3 predictions and 2 references", f1.add_batch, f1, { 1, 2, 3 }, { 1, 2 })
    raises("f1:add_batch: references are missing", f1.add_batch, f1, { 1 })
    raises("unknown input 'refs'", f1.add_batch, f1, { predictions = { 1 }, refs = { 1 } })
    raises("labels are numbers or strings, got nan", f1.add_batch, f1, { 0 / 0 }, { 1 })
    f1:add_batch({ 0, 1, 2 }, { 0, 1, 2 })
    raises("there are 3 labels; average = 'binary' is for two", f1.compute, f1)
    local mean = metrics.load "mean"
    raises("weights must be 0 or more, got -1", mean.add, mean, 1, -1)
    mean:add(1, 0)
    raises("the weights add up to 0", mean.compute, mean)
  end)

  it("count every sample once on two ranks, through gather_for_metrics", function()
    ranks.ok(2, [[
      local data, metrics = accelerate.data, accelerate.metrics
      local accelerator = accelerate.Accelerator {}
      local truth, guess = core.arange(23):remainder(3), core.arange(23):remainder(2)
      local loader = accelerator:prepare(data.DataLoader(data.TensorDataset(guess, truth),
        { batch_size = 4 }))
      local accuracy, matrix = metrics.load "accuracy", metrics.load "confusion_matrix"
      for p, r in loader:iter() do
        p, r = unpack(accelerator:gather_for_metrics { p, r })
        accuracy:add_batch(p, r)
        matrix:add_batch(p, r)
      end
      local right, total = guess:eq(truth):sum():item(), 0
      check(math.abs(accuracy:compute().accuracy - right / 23) < 1e-12)
      for _, row in ipairs(matrix:compute().confusion_matrix) do
        for _, n in ipairs(row) do total = total + n end
      end
      check(total == 23, total)
    ]])
  end)
end)
