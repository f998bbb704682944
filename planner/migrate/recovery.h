#pragma once
#include "core/run/recovery.h"
namespace het::planner {
RecoveryPlanner recovery_planner();
}
