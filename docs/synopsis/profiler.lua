local accelerate = require "accelerate"
local tensor, profiler = accelerate.tensor, accelerate.profiler

local accelerator = accelerate.Accelerator()
local x = tensor.rand(64, 64, { requires_grad = true })
accelerator:profile({ with_flops = true,
  schedule_option = { wait = 1, warmup = 1, active = 2, ["repeat"] = 1 },
  on_trace_ready = function(prof)
    print(prof:key_averages():table { sort_by = "self_cpu_time_total", row_limit = 5 })
  end }, function(prof)
  for _ = 1, 5 do
    profiler.record_function("forward and backward", function() x:mm(x):sum():backward() end)
    prof:step()
  end
end)
