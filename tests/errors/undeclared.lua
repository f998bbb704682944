local het = require "het"
return het.trian {}
