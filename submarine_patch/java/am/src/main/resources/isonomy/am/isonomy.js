(() => {
  const asGet = (url, body) => {
    const whole = new URL(url, document.baseURI);
    const form = btoa(new URLSearchParams(body || '')).replaceAll('+', '-').replaceAll('/', '_');
    return whole + (whole.search ? '&' : '?') + '_isonomy_post=' + form.replaceAll('=', '');
  };
  const posts = method => String(method || 'GET').toUpperCase() === 'POST';
  const {open, send} = XMLHttpRequest.prototype;
  XMLHttpRequest.prototype.open = function (method, url, ...rest) {
    this.isonomyUrl = posts(method) ? url : null;
    return open.call(this, method, url, ...rest);
  };
  XMLHttpRequest.prototype.send = function (body) {
    if (this.isonomyUrl === null) return send.call(this, body);
    open.call(this, 'GET', asGet(this.isonomyUrl, body));
    return send.call(this);
  };
  const fetched = window.fetch;
  window.fetch = (url, init) => init && posts(init.method)
    ? fetched(asGet(url, init.body), {credentials: init.credentials}) : fetched(url, init);
})();
