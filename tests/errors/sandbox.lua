local het = require "het"
os.execute "true"
return het
