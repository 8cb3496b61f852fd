--- Hooks around the forward of modules, with Accelerate's names.
---
---   local hooks = require "accelerate.hooks"
---   local Timer = class("Timer", hooks.ModelHook)       -- utils.class
---   function Timer:pre_forward(module, ...) self.begun = os.clock() return ... end
---   function Timer:post_forward(module, ...) print(os.clock() - self.begun) return ... end
---   hooks.add_hook_to_module(model.fc, Timer())
---
--- One hook stands around a module: a second one takes its place, or follows it with append = true.
--- What pre_forward returns are the arguments of forward, what post_forward returns the results.
local properties = require "accelerate.utils.properties"

local members = {}

local function add(module, names)
  for name in names:gmatch "%S+" do members[name] = "accelerate.hooks." .. module .. ":" .. name end
end

add("base", [[ModelHook SequentialHook add_hook_to_module remove_hook_from_module
  remove_hook_from_submodules]])
add("align", [[AlignDevicesHook attach_align_device_hook attach_align_device_hook_on_blocks
  attach_execution_device_hook]])
add("placement", "CpuOffload UserCpuOffloadHook LayerwiseCastingHook attach_layerwise_casting_hooks")

return properties.lazy("accelerate.hooks", members)
