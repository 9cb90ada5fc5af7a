/* Copyright (c) The gpuops.remediation maintainers
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The part of NVML's C interface that the simulated library exports, in the subset of C that cffi parses.
 * A call whose prototype stands here and for which library.py has no function of its own is answered from the model's data:
 * out pointers are filled in order, `void *` arguments are left alone. A call that is not here is "Function Not Found", as in an older driver.
 */
typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlEventSet_st *nvmlEventSet_t;
typedef struct nvmlGpuInstance_st *nvmlGpuInstance_t;
typedef struct nvmlComputeInstance_st *nvmlComputeInstance_t;

typedef struct { unsigned long long total; unsigned long long free; unsigned long long used; } nvmlMemory_t;
typedef struct { unsigned int version; unsigned long long total; unsigned long long reserved; unsigned long long free; unsigned long long used; } nvmlMemory_v2_t;
typedef struct { unsigned long long bar1Total; unsigned long long bar1Free; unsigned long long bar1Used; } nvmlBAR1Memory_t;
typedef struct { char busIdLegacy[16]; unsigned int domain; unsigned int bus; unsigned int device; unsigned int pciDeviceId; unsigned int pciSubSystemId; char busId[32]; } nvmlPciInfo_t;
typedef struct { unsigned int gpu; unsigned int memory; } nvmlUtilization_t;
typedef struct { unsigned int max; unsigned int high; unsigned int partial; unsigned int low; unsigned int none; } nvmlRowRemapperHistogramValues_t;
typedef struct { unsigned long long l1Cache; unsigned long long l2Cache; unsigned long long deviceMemory; unsigned long long registerFile; } nvmlEccErrorCounts_t;
typedef struct { unsigned int version; unsigned long long aggregateUncParity; unsigned long long aggregateUncSecDed; unsigned long long aggregateCor; unsigned long long volatileUncParity; unsigned long long volatileUncSecDed; unsigned long long volatileCor; unsigned long long aggregateUncBucketL2; unsigned long long aggregateUncBucketSm; unsigned long long aggregateUncBucketPcie; unsigned long long aggregateUncBucketMcu; unsigned long long aggregateUncBucketOther; unsigned int bThresholdExceeded; } nvmlEccSramErrorStatus_v1_t;
typedef struct { unsigned int version; unsigned int value; } nvmlDeviceAddressingMode_t;
typedef struct { unsigned int isC2cEnabled; } nvmlC2cModeInfo_v1_t;
typedef struct { unsigned long long protectedMemSizeKib; unsigned long long unprotectedMemSizeKib; } nvmlConfComputeMemSizeInfo_t;
typedef struct { unsigned int cpuCaps; unsigned int gpusCaps; } nvmlConfComputeSystemCaps_t;
typedef struct { unsigned int environment; unsigned int ccFeature; unsigned int devToolsMode; } nvmlConfComputeSystemState_t;
typedef struct { unsigned int version; unsigned long long attackerAdvantage; } nvmlConfComputeGetKeyRotationThresholdInfo_t;
typedef struct { unsigned int version; char str[2048]; } nvmlDevicePerfModes_t;
typedef struct { unsigned int bIsPresent; unsigned int percentage; unsigned int incThreshold; unsigned int decThreshold; } nvmlGpuDynamicPstatesUtilization_t;
typedef struct { unsigned int flags; nvmlGpuDynamicPstatesUtilization_t utilization[8]; } nvmlGpuDynamicPstatesInfo_t;
typedef struct { unsigned int sessionsCount; unsigned int averageFPS; unsigned int averageLatency; } nvmlFBCStats_t;
typedef struct { unsigned int year; unsigned short month; unsigned short day; unsigned short hour; unsigned short min; unsigned short sec; unsigned char status; } nvmlGridLicenseExpiry_t;
typedef struct { unsigned int featureCode; unsigned int featureState; char licenseInfo[128]; char productName[128]; unsigned int featureEnabled; nvmlGridLicenseExpiry_t licenseExpiry; } nvmlGridLicensableFeature_t;
typedef struct { int isGridLicenseSupported; unsigned int licensableFeaturesCount; nvmlGridLicensableFeature_t gridLicensableFeatures[3]; } nvmlGridLicensableFeatures_t;
typedef struct { unsigned int version; int marginTemperature; } nvmlMarginTemperature_t;
typedef struct { unsigned int version; unsigned int sensorType; int temperature; } nvmlTemperature_t;
typedef struct { unsigned int version; unsigned long long value; } nvmlPdi_t;
typedef struct { unsigned int version; unsigned int bChannelRepairPending; unsigned int bTpcRepairPending; } nvmlRepairStatus_t;
typedef struct { unsigned int version; unsigned int unrepairableMemory; } nvmlUnrepairableMemoryStatus_t;
typedef struct { unsigned int version; char branch[80]; } nvmlSystemDriverBranchInfo_t;
typedef struct { unsigned int pid; unsigned long long usedGpuMemory; unsigned int gpuInstanceId; unsigned int computeInstanceId; } nvmlProcessInfo_t;
typedef union { double dVal; int siVal; unsigned int uiVal; unsigned long ulVal; unsigned long long ullVal; signed long long sllVal; unsigned short usVal; } nvmlValue_t;
typedef struct { unsigned int fieldId; unsigned int scopeId; long long timestamp; long long latencyUsec; unsigned int valueType; nvmlReturn_t nvmlReturn; nvmlValue_t value; } nvmlFieldValue_t;
typedef struct { nvmlDevice_t device; unsigned long long eventType; unsigned long long eventData; unsigned int gpuInstanceId; unsigned int computeInstanceId; } nvmlEventData_t;
typedef struct { unsigned int start; unsigned int size; } nvmlGpuInstancePlacement_t;
typedef struct { unsigned int id; unsigned int isP2pSupported; unsigned int sliceCount; unsigned int instanceCount; unsigned int multiprocessorCount; unsigned int copyEngineCount; unsigned int decoderCount; unsigned int encoderCount; unsigned int jpegCount; unsigned int ofaCount; unsigned long long memorySizeMB; } nvmlGpuInstanceProfileInfo_t;
typedef struct { unsigned int version; unsigned int id; unsigned int isP2pSupported; unsigned int sliceCount; unsigned int instanceCount; unsigned int multiprocessorCount; unsigned int copyEngineCount; unsigned int decoderCount; unsigned int encoderCount; unsigned int jpegCount; unsigned int ofaCount; unsigned long long memorySizeMB; char name[96]; } nvmlGpuInstanceProfileInfo_v2_t;
typedef struct { nvmlDevice_t device; unsigned int id; unsigned int profileId; nvmlGpuInstancePlacement_t placement; } nvmlGpuInstanceInfo_t;
typedef struct { unsigned int start; unsigned int size; } nvmlComputeInstancePlacement_t;
typedef struct { unsigned int id; unsigned int sliceCount; unsigned int instanceCount; unsigned int multiprocessorCount; unsigned int sharedCopyEngineCount; unsigned int sharedDecoderCount; unsigned int sharedEncoderCount; unsigned int sharedJpegCount; unsigned int sharedOfaCount; } nvmlComputeInstanceProfileInfo_t;
typedef struct { unsigned int version; unsigned int id; unsigned int sliceCount; unsigned int instanceCount; unsigned int multiprocessorCount; unsigned int sharedCopyEngineCount; unsigned int sharedDecoderCount; unsigned int sharedEncoderCount; unsigned int sharedJpegCount; unsigned int sharedOfaCount; char name[96]; } nvmlComputeInstanceProfileInfo_v2_t;
typedef struct { nvmlDevice_t device; nvmlGpuInstance_t gpuInstance; unsigned int id; unsigned int profileId; nvmlComputeInstancePlacement_t placement; } nvmlComputeInstanceInfo_t;
typedef struct { unsigned int multiprocessorCount; unsigned int sharedCopyEngineCount; unsigned int sharedDecoderCount; unsigned int sharedEncoderCount; unsigned int sharedJpegCount; unsigned int sharedOfaCount; unsigned int gpuInstanceSliceCount; unsigned int computeInstanceSliceCount; unsigned long long memorySizeMB; } nvmlDeviceAttributes_t;

/* Library and system */
nvmlReturn_t nvmlInit(void);
nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlInitWithFlags(unsigned int flags);
nvmlReturn_t nvmlShutdown(void);
nvmlReturn_t nvmlSystemGetConfComputeCapabilities(nvmlConfComputeSystemCaps_t *value);
nvmlReturn_t nvmlSystemGetConfComputeGpusReadyState(unsigned int *value);
nvmlReturn_t nvmlSystemGetConfComputeKeyRotationThresholdInfo(nvmlConfComputeGetKeyRotationThresholdInfo_t *value);
nvmlReturn_t nvmlSystemGetConfComputeSettings(void *value);
nvmlReturn_t nvmlSystemGetConfComputeState(nvmlConfComputeSystemState_t *value);
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *value);
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *value);
nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t *value, unsigned int length);
nvmlReturn_t nvmlSystemGetDriverVersion(char *value, unsigned int length);
nvmlReturn_t nvmlSystemGetHicVersion(unsigned int *count, void *entries);
nvmlReturn_t nvmlSystemGetNVMLVersion(char *value, unsigned int length);
nvmlReturn_t nvmlSystemGetNvlinkBwMode(unsigned int *value);
nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length);
nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int cpu, void *count, void *devices);

/* Which GPU */
nvmlReturn_t nvmlDeviceGetCount(unsigned int *count);
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count);
nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *address, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *address, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device);

/* What it is */
nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *value, unsigned int length);
nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetBusType(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetC2cModeInfoV(nvmlDevice_t device, nvmlC2cModeInfo_v1_t *value);
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor);
nvmlReturn_t nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned int *enabled, unsigned int *standard);
nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *value);
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetInforomConfigurationChecksum(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetInforomImageVersion(nvmlDevice_t device, char *value, unsigned int length);
nvmlReturn_t nvmlDeviceGetIrqNum(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetModuleId(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *value, unsigned int length);
nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *value);
nvmlReturn_t nvmlDeviceGetPdi(nvmlDevice_t device, nvmlPdi_t *value);
nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *value, unsigned int length);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *value, unsigned int length);
nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *value, unsigned int length);
nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, unsigned int *value);

/* Memory and its errors */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *value);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *value);
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *value);
nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t device, nvmlConfComputeMemSizeInfo_t *value);
nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *value);
nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending);
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int error, unsigned int counter, unsigned long long *value);
nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned int error, unsigned int counter, unsigned int location, unsigned long long *value);
nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, unsigned int error, unsigned int counter, nvmlEccErrorCounts_t *value);
nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_v1_t *value);
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable, unsigned int *pending, unsigned int *failure);
nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *value);
nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t device, nvmlRepairStatus_t *value);
nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, void *value);
nvmlReturn_t nvmlDeviceGetUnrepairableMemoryFlag_v1(nvmlDevice_t device, nvmlUnrepairableMemoryStatus_t *value);
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values);

/* What it does */
nvmlReturn_t nvmlDeviceGetAccountingBufferSize(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, void *pids);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos);
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos);
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos);
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos);
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos);
nvmlReturn_t nvmlDeviceGetEncoderSessions(nvmlDevice_t device, unsigned int *count, void *sessions);
nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned int *sessions, unsigned int *fps, unsigned int *latency);
nvmlReturn_t nvmlDeviceGetFBCSessions(nvmlDevice_t device, unsigned int *count, void *sessions);
nvmlReturn_t nvmlDeviceGetFBCStats(nvmlDevice_t device, nvmlFBCStats_t *value);
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *value);
nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *value, unsigned int *period);
nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *value, unsigned int *period);
nvmlReturn_t nvmlDeviceGetJpgUtilization(nvmlDevice_t device, unsigned int *value, unsigned int *period);
nvmlReturn_t nvmlDeviceGetOfaUtilization(nvmlDevice_t device, unsigned int *value, unsigned int *period);

/* Modes, clocks, power, heat, bus */
nvmlReturn_t nvmlDeviceGetAdaptiveClockInfoStatus(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t *value);
nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned int mode);
nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned int type, unsigned int id, unsigned int *value);
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *value);
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *value);
nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetCurrentClockFreqs(nvmlDevice_t device, nvmlDevicePerfModes_t *value);
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *value);
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *value);
nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device, nvmlGpuDynamicPstatesInfo_t *value);
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetGpcClkMinMaxVfOffset(nvmlDevice_t device, int *low, int *high);
nvmlReturn_t nvmlDeviceGetGpcClkVfOffset(nvmlDevice_t device, int *value);
nvmlReturn_t nvmlDeviceGetGpuMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetGridLicensableFeatures_v4(nvmlDevice_t device, nvmlGridLicensableFeatures_t *value);
nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *value);
nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetMemClkMinMaxVfOffset(nvmlDevice_t device, int *low, int *high);
nvmlReturn_t nvmlDeviceGetMemClkVfOffset(nvmlDevice_t device, int *value);
nvmlReturn_t nvmlDeviceGetNumFans(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetPcieLinkMaxSpeed(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetPcieSpeed(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetPerformanceModes(nvmlDevice_t device, nvmlDevicePerfModes_t *value);
nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned int mode);
nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *low, unsigned int *high);
nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetPowerSource(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device, unsigned long long *value);
nvmlReturn_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device, unsigned long long *value);
nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int *count, unsigned int *values);
nvmlReturn_t nvmlDeviceGetSupportedPerformanceStates(nvmlDevice_t device, unsigned int *values, unsigned int size);
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *value);
nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *value);
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *value);

/* Events */
nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *value);
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set);
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set);
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set);
nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout);
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout);

/* MIG: mode, MIG devices, GPU instances, compute instances */
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending);
nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation);
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig);
nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *value);
nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *value);
nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile, nvmlGpuInstanceProfileInfo_t *info);
nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile, nvmlGpuInstanceProfileInfo_v2_t *info);
nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int profile, nvmlGpuInstancePlacement_t *placements, unsigned int *count);
nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int profile, unsigned int *count);
nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profile, nvmlGpuInstance_t *instances, unsigned int *count);
nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance);
nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int profile, nvmlGpuInstance_t *instance);
nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profile, const nvmlGpuInstancePlacement_t *placement, nvmlGpuInstance_t *instance);
nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance);
nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info);
nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned int profile, unsigned int engine, nvmlComputeInstanceProfileInfo_t *info);
nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned int profile, unsigned int engine, nvmlComputeInstanceProfileInfo_v2_t *info);
nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance, unsigned int profile, nvmlComputeInstancePlacement_t *placements, unsigned int *count);
nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance, unsigned int profile, unsigned int *count);
nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned int profile, nvmlComputeInstance_t *instances, unsigned int *count);
nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned int id, nvmlComputeInstance_t *compute);
nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned int profile, nvmlComputeInstance_t *compute);
nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t instance, unsigned int profile, const nvmlComputeInstancePlacement_t *placement, nvmlComputeInstance_t *compute);
nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t compute);
nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info);
nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info);

/* Answered with an error on every model so far */
nvmlReturn_t nvmlDeviceGetActiveVgpus(nvmlDevice_t device, void *a, void *b);
nvmlReturn_t nvmlDeviceGetAutoBoostedClocksEnabled(nvmlDevice_t device, void *a, void *b);
nvmlReturn_t nvmlDeviceGetBridgeChipInfo(nvmlDevice_t device, void *a);
nvmlReturn_t nvmlDeviceGetClkMonStatus(nvmlDevice_t device, void *a);
nvmlReturn_t nvmlDeviceGetConfComputeGpuCertificate(nvmlDevice_t device, void *a);
nvmlReturn_t nvmlDeviceGetCoolerInfo(nvmlDevice_t device, void *a);
nvmlReturn_t nvmlDeviceGetCreatableVgpus(nvmlDevice_t device, void *a, void *b);
nvmlReturn_t nvmlDeviceGetDramEncryptionMode(nvmlDevice_t device, void *a, void *b);
nvmlReturn_t nvmlDeviceGetDriverModel(nvmlDevice_t device, void *a, void *b);
nvmlReturn_t nvmlDeviceGetDriverModel_v2(nvmlDevice_t device, void *a, void *b);
nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, void *a);
nvmlReturn_t nvmlDeviceGetFanSpeedRPM(nvmlDevice_t device, void *a);
nvmlReturn_t nvmlDeviceGetGpuOperationMode(nvmlDevice_t device, void *a, void *b);
nvmlReturn_t nvmlDeviceGetHostVgpuMode(nvmlDevice_t device, void *a);
nvmlReturn_t nvmlDeviceGetHostname_v1(nvmlDevice_t device, void *a);
nvmlReturn_t nvmlDeviceGetLastBBXFlushTime(nvmlDevice_t device, void *a, void *b);
nvmlReturn_t nvmlDeviceGetMinMaxFanSpeed(nvmlDevice_t device, void *a, void *b);
nvmlReturn_t nvmlDeviceGetPgpuMetadataString(nvmlDevice_t device, void *a, void *b);
nvmlReturn_t nvmlDeviceGetSupportedVgpus(nvmlDevice_t device, void *a, void *b);
nvmlReturn_t nvmlDeviceGetVgpuHeterogeneousMode(nvmlDevice_t device, void *a);
nvmlReturn_t nvmlDeviceGetVgpuSchedulerCapabilities(nvmlDevice_t device, void *a);
nvmlReturn_t nvmlDeviceGetVgpuSchedulerLog(nvmlDevice_t device, void *a);
nvmlReturn_t nvmlDeviceGetVgpuSchedulerState(nvmlDevice_t device, void *a);
