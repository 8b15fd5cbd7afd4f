//! What a device says about itself.

use std::ffi::CStr;
use std::ptr;

use mlx_rs::{DeviceType, Stream};

/// The architecture's name of a kind of device (`applegpu_g13s`), if it tells one.
pub(crate) fn architecture(class: DeviceType) -> Option<String> {
    asked(class, |info| {
        let mut text = ptr::null();
        // SAFETY: `info` is live, the key is a C string, and `text` is read only where the call succeeded: it then points
        // to a C string that belongs to `info`.
        unsafe {
            let told =
                mlx_sys::mlx_device_info_get_string(&raw mut text, info, c"architecture".as_ptr())
                    == 0
                    && !text.is_null();
            told.then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    })
}

/// A size that a kind of device tells under a key, if it does.
pub(crate) fn figure(class: DeviceType, key: &CStr) -> Option<usize> {
    asked(class, |info| {
        let mut size = 0;
        // SAFETY: `info` is live, the key is a C string, `size` is written in this call only.
        let told =
            unsafe { mlx_sys::mlx_device_info_get_size(&raw mut size, info, key.as_ptr()) == 0 };
        (told && size > 0).then_some(size)
    })
}

/// What `read` finds in the description of a kind of device, which lives as long as the call.
fn asked<T>(
    class: DeviceType,
    read: impl FnOnce(mlx_sys::mlx_device_info) -> Option<T>,
) -> Option<T> {
    // SAFETY: plain constructors, which take no pointers; both are freed below and not used after that.
    let (device, mut info) = unsafe {
        (
            mlx_sys::mlx_device_new_type(class.into(), 0),
            mlx_sys::mlx_device_info_new(),
        )
    };
    // SAFETY: both handles are live.
    let got = unsafe { mlx_sys::mlx_device_info_get(&raw mut info, device) } == 0;
    let found = if got { read(info) } else { None };
    // SAFETY: made above, freed once.
    unsafe {
        mlx_sys::mlx_device_info_free(info);
        mlx_sys::mlx_device_free(device);
    }
    found
}

/// Waits for everything that was queued on this thread's stream.
pub(crate) fn wait() {
    let stream = Stream::thread_local_or_default();
    // SAFETY: the stream lives until the call returns. A failure leaves nothing to wait for.
    let _ = unsafe { mlx_sys::mlx_synchronize(stream.as_ptr()) };
}

/// True for an array whose numbers are there.
#[cfg(test)]
pub(crate) fn is_there(array: &mlx_rs::Array) -> bool {
    let mut there = false;
    // SAFETY: the array is live, `there` is written in this call only.
    let status = unsafe { mlx_sys::_mlx_array_is_available(&raw mut there, array.as_ptr()) };
    status == 0 && there
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the name is depends on the machine; that it is a name, and the same one twice, does not.
    #[test]
    fn the_processor_tells_its_name() {
        let name = architecture(DeviceType::Cpu);
        assert_eq!(name, architecture(DeviceType::Cpu));
        assert!(name.is_none_or(|n| !n.is_empty()));
    }
}
