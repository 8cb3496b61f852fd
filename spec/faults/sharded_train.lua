-- Training under full sharding, in which a rank kills itself:
-- `accel-run sharded_train.lua FOLDER PHASE RANK`. PHASE is where in the third step:
--   acquire   before a unit's values are gathered: the others wait for its part
--   forward   inside a unit's forward
--   deliver   in backward, where a unit's gradients are about to be reduced
--   norm      before gradients are clipped
--   step      in the optimizer's step
--   save      while a state is saved
local ffi = require "ffi"
local accelerate = require "accelerate"
local nn, optim, tensor = require "accelerate.nn", require "accelerate.optim", require "accelerate.tensor"

ffi.cdef [[
  int getpid(void);
  int kill(int pid, int sig);
  typedef struct { long seconds, nanoseconds; } sharded_time;
  int clock_gettime(int clock, sharded_time *out);
]]

local folder, phase, victim = arg[1], arg[2], tonumber(arg[3])
local step = 0

local accelerator = accelerate.Accelerator {
  fsdp_plugin = { auto_wrap_policy = "SIZE_BASED_WRAP", min_num_params = 50 },
  project_config = accelerate.ProjectConfiguration { project_dir = folder },
}

-- Ends this rank when step 3 comes to a phase; the line says when.
local function at(here)
  if here ~= phase or step ~= 3 or accelerator.process_index ~= victim then return end
  local t = ffi.new "sharded_time"
  ffi.C.clock_gettime(1, t)
  io.stderr:write(("at %d.%09d rank %d acts\n"):format(tonumber(t.seconds), tonumber(t.nanoseconds), victim))
  ffi.C.kill(ffi.C.getpid(), 9)
end

local model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
model[3]:register_forward_pre_hook(function() at "acquire" end) -- before that of the plan
model[5]:register_forward_pre_hook(function(_, args)
  at "forward"
  if args[1].requires_grad then args[1]:register_hook(function() at "deliver" end) end
end)
local optimizer = optim.AdamW(model:parameters(), { lr = 1e-2 })
optimizer:register_step_pre_hook(function() at "step" end)
model, optimizer = accelerator:prepare(model, optimizer)
accelerator:register_save_state_pre_hook(function() at "save" end)

for _ = 1, 4 do
  step = step + 1
  accelerator:backward(model(tensor.randn(4, 8)):square():mean())
  at "norm"
  accelerator:clip_grad_norm_(model:parameters(), 1)
  optimizer:step()
  optimizer:zero_grad()
  if step == 3 then accelerator:save_state(folder .. "/state") end
end
