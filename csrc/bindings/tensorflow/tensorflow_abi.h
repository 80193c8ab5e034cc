// What the op library uses of TensorFlow's C interface for kernels and ops: the same symbols, with
// the same types, in TensorFlow 2.16 to 2.21. Declared here so that building needs no TensorFlow,
// and one library serves all of them. Where a function may fail it says so in its TF_Status.
#pragma once

#include <cstddef>
#include <cstdint>

// NOLINTBEGIN(modernize-*): it is C.
extern "C" {

typedef struct TF_Status TF_Status;
typedef struct TF_Tensor TF_Tensor;
typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;
typedef struct TF_KernelBuilder TF_KernelBuilder;
typedef struct TF_OpKernelConstruction TF_OpKernelConstruction;
typedef struct TF_OpKernelContext TF_OpKernelContext;
typedef struct TF_AsyncOpKernelDoneCallback TF_AsyncOpKernelDoneCallback;

/// Not terminated by a zero.
struct TF_StringView {
  const char* data;
  size_t len;
};

// An error code is an int of TensorFlow's absl::StatusCode, a data type one of its DataType.
TF_Status* TF_NewStatus();
void TF_DeleteStatus(TF_Status*);
void TF_SetStatus(TF_Status*, int code, const char* message);
int TF_GetCode(const TF_Status*);
const char* TF_Message(const TF_Status*);

TF_OpDefinitionBuilder* TF_NewOpDefinitionBuilder(const char* name);
void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder*, const char* specification);
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder*, const char* specification);
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder*, const char* specification);
void TF_OpDefinitionBuilderSetIsStateful(TF_OpDefinitionBuilder*, bool);
void TF_OpDefinitionBuilderSetShapeInferenceFunction(TF_OpDefinitionBuilder*,
                                                     void (*infer)(TF_ShapeInferenceContext*,
                                                                   TF_Status*));
void TF_ShapeInferenceContextSetUnknownShape(TF_ShapeInferenceContext*, TF_Status*);
/// Takes the builder.
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder*, TF_Status*);

TF_KernelBuilder* TF_NewAsyncKernelBuilder(const char* op,
                                           const char* device,
                                           void* (*create)(TF_OpKernelConstruction*),
                                           void (*compute)(void* kernel,
                                                           TF_OpKernelContext*,
                                                           TF_AsyncOpKernelDoneCallback*),
                                           void (*destroy)(void* kernel));
/// Takes the builder.
void TF_RegisterKernelBuilder(const char* kernel, TF_KernelBuilder*, TF_Status*);

TF_StringView TF_OpKernelConstruction_GetName(TF_OpKernelConstruction*);
void TF_OpKernelConstruction_GetAttrSize(TF_OpKernelConstruction*,
                                         const char* name,
                                         int32_t* list_size,
                                         int32_t* total_size,
                                         TF_Status*);
void TF_OpKernelConstruction_GetAttrInt64(TF_OpKernelConstruction*,
                                          const char* name,
                                          int64_t* value,
                                          TF_Status*);
void TF_OpKernelConstruction_GetAttrString(
    TF_OpKernelConstruction*, const char* name, char* value, size_t room, TF_Status*);
void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction*, TF_Status*);

/// The tensor is to be deleted; its memory is kept by the context, too, until the kernel is done.
void TF_GetInput(TF_OpKernelContext*, int index, TF_Tensor**, TF_Status*);
/// So with these two.
TF_Tensor* TF_AllocateOutput(TF_OpKernelContext*,
                             int index,
                             int dtype,
                             const int64_t* shape,
                             int dimensions,
                             size_t bytes,
                             TF_Status*);
TF_Tensor* TF_ForwardInputOrAllocateOutput(TF_OpKernelContext*,
                                           const int* candidates,
                                           int candidate_count,
                                           int index,
                                           const int64_t* shape,
                                           int dimensions,
                                           int* forwarded,
                                           TF_Status*);
/// The output shares the tensor's memory.
void TF_SetOutput(TF_OpKernelContext*, int index, const TF_Tensor*, TF_Status*);
void TF_OpKernelContext_Failure(TF_OpKernelContext*, TF_Status*);
void TF_RunAsyncOpKernelDoneCallback(TF_AsyncOpKernelDoneCallback*);

/// 0 outside of loops, else the same on every rank for one loop in one iteration of those around
/// it.
uint64_t TF_GetFrameId(TF_OpKernelContext*);
/// The iteration of the innermost loop.
int64_t TF_GetIterId(TF_OpKernelContext*);

int TF_TensorType(const TF_Tensor*);
int TF_NumDims(const TF_Tensor*);
int64_t TF_Dim(const TF_Tensor*, int dimension);
void* TF_TensorData(const TF_Tensor*);
void TF_DeleteTensor(TF_Tensor*);

}  // extern "C"
// NOLINTEND(modernize-*)
