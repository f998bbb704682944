# The manifest of a snapshot file: what the file holds, the run and the step. The bytes of the tensors lie
# outside the message; layout.h describes the file around it. Fields are only ever added, at the end.
@0xb8a5c9d1f4720e63;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("het::schema");

struct Manifest {
  run @0 :Text;                  # the name of the run
  step @1 :Int64;                # whose update the state has had
  generation @2 :Int64;          # that decided this step
  history @3 :List(Era);         # ascending; the decisions that led to this state
  plan @4 :Text;                 # as a recipe writes it; empty: one device
  rank @5 :Int32;                # who wrote the file
  ranks @6 :Int32;               # of that plan
  cursor @7 :Int64;              # index of the next training sample
  seed @8 :Int64;
  about @9 :Text;                # JSON: settings and results that the recipe's language keeps
  tensors @10 :List(Tensor);     # the whole state, ascending by name, whether this file has a part or not
  units @11 :List(Unit);         # the parts in this file, ascending by offset
}

# A generation decided the steps from `firstStep` on, up to the first one of the next era.
struct Era {
  generation @0 :Int64;
  firstStep @1 :Int64;
  nonce @2 :Int64;               # random; tells generations of equal number of different runs apart; 0: not known
}

struct Tensor {
  name @0 :Text;
  dtype @1 :Text;                # "f32", "bf16", ...
  shape @2 :List(Int64);
  trained @3 :Bool;              # a parameter, not state of the optimizer
}

# A part of one tensor: the packed elements of a slice, row-major.
struct Unit {
  tensor @0 :UInt32;             # index in Manifest.tensors
  dimensions @1 :List(List(Range));   # the indices in each dimension; empty: the whole tensor
  offset @2 :Int64;              # bytes from the start of the file, a multiple of 4096
  checksums @3 :List(UInt32);    # CRC-32C of each chunk of 4 MiB; the last one may be shorter
}

struct Range {                   # [begin, end)
  begin @0 :Int64;
  end @1 :Int64;
}
