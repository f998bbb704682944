# What processes of a run say to each other about the snapshot files that they hold: one Request, then the Response to it,
# each in a frame of at most 1 MiB (core/net/frame.h). Fields are only ever added, at the end.
@0xd3f1a86e27b4905c;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("het::schema");

struct Request {
  union {
    list @0 :Void;
    read @1 :ReadRequest;
    offer @2 :OfferRequest;
  }
}

struct ReadRequest {
  file @0 :Text;                 # a name without folders
  offset @1 :Int64;              # bytes from the start of the file
  bytes @2 :Int64;               # at least 1, at most 64 MiB
}

# A file that the receiver may keep a replica of.
struct OfferRequest {
  file @0 :Text;
  bytes @1 :Int64;               # of the whole file
  from @2 :Text;                 # endpoint of the server that has it: "10.0.0.7:4711"
}

struct Response {
  union {
    refusal @0 :Text;            # a sentence
    files @1 :List(FileEntry);   # to `list`
    data @2 :DataResponse;       # to `read`; its bytes follow the frame
    working @3 :Void;            # to `offer`, once a second until the replica is complete
    stored @4 :StoredResponse;   # to `offer`
  }
}

struct FileEntry {
  name @0 :Text;
  bytes @1 :Int64;
  folder @2 :UInt32;             # index in the folders that are served, the nearest first
}

struct DataResponse {
  bytes @0 :Int64;               # as many as asked for
  fileBytes @1 :Int64;           # of the whole file
}

struct StoredResponse {
  transferred @0 :Int64;         # bytes that came from the peer
  copied @1 :Int64;              # bytes that came from the previous replica
}
