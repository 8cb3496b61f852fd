--- nn.SyncBatchNorm on several ranks: what BatchNorm gives for all of the batch.
local ranks = require "spec.support.ranks"

describe("SyncBatchNorm", function()
  it("has BatchNorm's results, statistics and gradients for the whole batch", function()
    local status, _, err = ranks.run(2, [[
      local nn = require "accelerate.nn"
      core.manual_seed(1)
      local x, g = core.randn(6, 3, 4):double(), core.randn(6, 3, 4):double()
      local whole = nn.BatchNorm1d(3, { dtype = "float64" })
      core.no_grad(function() whole.weight:copy_(core.tensor { 1, 2, 3 }) end)
      local sync = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(whole:clone()))
      local all = x:clone():requires_grad_()
      local y = whole(all)
      y:mul(g):sum():backward()
      -- parts of 2 and 4 samples
      local from, count = rank * 2 + 1, rank * 2 + 2
      local own = x:narrow(1, from, count):clone():requires_grad_()
      local z = sync(own)
      z:mul(g:narrow(1, from, count)):sum():backward()
      local function near(a, b, what) check((a - b):abs():max():item() < 1e-9, what) end
      near(z, y:narrow(1, from, count), "values")
      near(own.grad, all.grad:narrow(1, from, count), "gradient")
      local layer = sync["0"]
      near(layer.running_mean, whole.running_mean, "running_mean")
      near(layer.running_var, whole.running_var, "running_var")
      check(layer.num_batches_tracked:item() == 1)
      local sum = layer.weight.grad:clone()
      core.dist.all_reduce(sum, "sum")
      near(sum, whole.weight.grad, "weight's gradient")
      sync:eval()
      whole:eval()
      near(sync(own), whole(own), "evaluation")
    ]])
    assert.are.equal(0, status, err)
  end)
end)
