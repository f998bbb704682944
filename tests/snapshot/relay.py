"""A relay between a client and an HTTP server that fails on purpose, request by request.

`fault(method, target)` names what goes wrong with a request: None, '503', 'lost' (done, but the answer never comes),
'cut' (the answer's body breaks off), 'short' (the answer says and has less than it should), 'unsent' (the request
breaks off on its way), 'slow' (the answer comes in pieces). All requests are kept in `seen`.
"""
import socket
import socketserver
import threading
import time


def read_message(stream):
    """The head as bytes, and the body, of one request; None at the end."""
    head = b''
    while not head.endswith(b'\r\n\r\n'):
        line = stream.readline(1 << 16)
        if not line:
            return None
        head += line
    length = 0
    for line in head.split(b'\r\n')[1:]:
        name, _, value = line.partition(b':')
        if name.lower() == b'content-length':
            length = int(value)
    return head, stream.read(length)


class Relay(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, host, port, fault=lambda method, target: None):
        self.upstream = (host, port)
        self.fault = fault
        self.seen = []
        self.lock = threading.Lock()
        super().__init__(('127.0.0.1', 0), Handler)
        self.url = f'http://127.0.0.1:{self.server_address[1]}'
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        pass  # a client that goes away is what these tests are about


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        while (message := read_message(self.rfile)) is not None:
            if not self.relay(*message):
                return

    def relay(self, head, body):
        lines = head.decode('latin-1').split('\r\n')
        method, target, _ = lines[0].split(' ')
        headers = dict(line.split(': ', 1) for line in lines[1:] if ': ' in line)
        with self.server.lock:
            self.server.seen.append((method, target, headers, len(body)))
            fault = self.server.fault(method, target)
        if fault == '503':
            text = b'<Error><Code>SlowDown</Code><Message>Later</Message></Error>'
            self.wfile.write(b'HTTP/1.1 503 Slow Down\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s' %
                             (len(text), b'' if method == 'HEAD' else text))
            return False
        with socket.create_connection(self.server.upstream) as server:
            plain = '\r\n'.join(line for line in lines if not line.lower().startswith('connection:'))
            plain = plain.rstrip('\r\n') + '\r\nConnection: close\r\n\r\n'
            if fault == 'unsent':
                server.sendall(plain.encode('latin-1') + body[:len(body) // 2])
                return False
            server.sendall(plain.encode('latin-1') + body)
            answer = b''
            while piece := server.recv(1 << 20):
                answer += piece
        return fault != 'lost' and self.answer(method, answer, fault)

    def answer(self, method, answer, fault):
        head, _, body = answer.partition(b'\r\n\r\n')
        lines = [line for line in head.split(b'\r\n') if not line.lower().startswith(b'connection:')]
        if fault == 'short' and body:
            body = body[:len(body) // 2]
            lines = [line for line in lines if not line.lower().startswith(b'content-length:')]
            lines.append(b'Content-Length: %d' % len(body))
        head = b'\r\n'.join(lines) + b'\r\nConnection: close\r\n\r\n'
        if method == 'HEAD':
            body = b''
        if fault == 'cut':
            body = body[:len(body) // 3]
        self.wfile.write(head)
        if fault == 'slow':
            for at in range(0, len(body), 1 << 16):
                self.wfile.write(body[at:at + (1 << 16)])
                time.sleep(0.005)
        else:
            self.wfile.write(body)
        return False
