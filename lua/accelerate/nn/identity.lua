--- nn.Identity.

local class = require "accelerate.utils.class"
local Module = require "accelerate.nn.module"

---@class accelerate.nn.Identity : accelerate.nn.Module
local Identity = class("Identity", Module)
Identity._builtin = true

--- Returns its input. The constructor ignores its arguments, so that it can replace any module.
function Identity:init() end

function Identity:forward(...) return ... end

return { Identity = Identity }
