local cuda = require "accelerate.cuda"

local available, reason = cuda.is_available()
if available then
  print(cuda.memory_summary())
  print(cuda.max_memory_allocated() <= cuda.max_memory_reserved())
else
  print(reason) -- no driver, no device, this build has no CUDA backend
end
