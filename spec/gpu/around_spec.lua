-- Trackers and the profiler with tensors of a device.
local device = require "spec.support.device"
local accelerate = require "accelerate"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local tensor, tracking = accelerate.tensor, accelerate.tracking

if not device.name then
  describe("trackers and the profiler on a device", function()
    it("keep what lies there", function() pending(device.reason) end)
  end)
  return
end

describe("trackers and the profiler on a device", function()
  it("keep what lies there", function()
    host.in_folder(function(folder)
      accelerate.state.reset()
      local accelerator = accelerate.Accelerator { log_with = "jsonl", project_dir = folder }
      accelerator:init_trackers("proj", { config = { lr = tensor.tensor(0.5, { device = device.name }) } })
      local x = tensor.rand(3, 4, 4):to(device.name)
      accelerator:log({ loss = tensor.tensor(0.25, { device = device.name }) }, { step = 1 })
      accelerator:get_tracker("jsonl"):log_images({ x = x }, { step = 1 })
      local writer = tracking.SummaryWriter(folder .. "/tb")
      writer:add_histogram("x", x)
      writer:add_image("x", x)
      writer:close()
      accelerator:end_training()
      local lines = {}
      for line in io.lines(folder .. "/proj/metrics.jsonl") do
        lines[#lines + 1] = assert(json.decode(line))
      end
      assert.are.equal(0.5, lines[1].config.lr)
      assert.are.equal(0.25, lines[2].loss)
      assert.are.equal(1, #lines[3].images.x)
      accelerate.state.reset()
    end)
  end)

  it("time ops with their work done", function()
    local accelerator = accelerate.Accelerator()
    local x = tensor.rand(8, 8):to(device.name)
    local prof = accelerator:profile({ activities = { "cpu", "cuda" }, with_flops = true }, function(p)
      assert(x:mm(x))
      return p
    end)
    local row = prof:key_averages()[1]
    assert.are.equal("mm", row.key)
    assert.are.equal(1024, row.flops)
    assert(row.cpu_time_total > 0)
    accelerate.state.reset()
  end)
end)
