--- nn.Identity.

local class = require "accelerate.utils.class"
local Module = require "accelerate.nn.module"

---@class accelerate.nn.Identity : accelerate.nn.Module
local Identity = class("Identity", Module)
Identity._builtin = true

--- Returns what it is given; arguments are taken and not used, so that it can stand in for any
--- module.
function Identity:init() end

function Identity:forward(...) return ... end

return { Identity = Identity }
