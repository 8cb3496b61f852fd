--- What the host sets as __index of _G at the first global that is missing: see strictness.lua.
return require("accelerate.messages.strictness").watcher
